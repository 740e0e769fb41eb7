// Memory: of the devices, with a limit, and pinned memory of the host.
#include "memory.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <cstring>
#include <map>
#include <mutex>

#include "streams.h"

namespace sim {

using c10::CachingAllocator::StatType;

constexpr double MIB = 1 << 20;
constexpr int UNWRITTEN = 0xFF; // NaN, or -1: what is read too early shows

struct Block {
  size_t bytes;
  int device;
};

// The blocks that are in use, by address.
class Blocks {
 public:
  void add(void* data, Block block) {
    std::lock_guard<std::mutex> held(lock_);
    all_[static_cast<const char*>(data)] = block;
  }
  Block remove(void* data) {
    std::lock_guard<std::mutex> held(lock_);
    auto found = all_.find(static_cast<const char*>(data));
    auto block = found->second;
    all_.erase(found);
    return block;
  }
  const Block* find(const void* data) {
    std::lock_guard<std::mutex> held(lock_);
    auto after = all_.upper_bound(static_cast<const char*>(data));
    if (after == all_.begin()) return nullptr;
    auto& [begin, block] = *std::prev(after);
    return static_cast<const char*>(data) < begin + std::max<size_t>(block.bytes, 1) ? &block : nullptr;
  }

 private:
  std::mutex lock_;
  std::map<const char*, Block> all_;
};

static Blocks& on_devices() { static auto* b = new Blocks(); return *b; }
static Blocks& in_pinned() { static auto* b = new Blocks(); return *b; }

static std::mutex counting;
static int64_t limits[DEVICES_AT_MOST];
static c10::CachingDeviceAllocator::DeviceStats stats[DEVICES_AT_MOST];
constexpr int64_t USUAL_LIMIT = int64_t(16) << 30;

static int64_t limit_of(int device) { return limits[device] ? limits[device] : USUAL_LIMIT; }

static auto& allocated(int device) {
  return stats[device].allocated_bytes[static_cast<size_t>(StatType::AGGREGATE)];
}

static void count(int device, int64_t bytes) {
  std::lock_guard<std::mutex> held(counting);
  constexpr auto all = static_cast<size_t>(StatType::AGGREGATE);
  auto& own = stats[device];
  if (bytes > 0 && allocated(device).current + bytes > limit_of(device)) {
    own.num_ooms++;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "sim out of memory. Tried to allocate ", bytes / MIB,
                     " MiB. Device ", device, " has a total capacity of ", limit_of(device) / MIB, " MiB of which ",
                     (limit_of(device) - allocated(device).current) / MIB, " MiB is free.");
  }
  for (auto* stat : {&own.allocated_bytes[all], &own.reserved_bytes[all], &own.active_bytes[all]})
    bytes > 0 ? stat->increase(bytes) : stat->decrease(-bytes);
}

static void free_on_device(void* data) {
  auto block = on_devices().remove(data);
  count(block.device, -static_cast<int64_t>(block.bytes));
  c10::free_cpu(data);
}

struct DeviceMemory final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    initialise();
    int device = current_device();
    c10::Device where(at::kPrivateUse1, device);
    if (bytes == 0) return {nullptr, nullptr, &free_on_device, where};
    count(device, bytes);
    void* data = c10::alloc_cpu(bytes);
    std::memset(data, UNWRITTEN, bytes);
    on_devices().add(data, {bytes, device});
    return {data, data, &free_on_device, where};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_on_device; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex d) override { return stats[d]; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex d) override {
    for (auto* kind : {&stats[d].allocated_bytes, &stats[d].reserved_bytes, &stats[d].active_bytes})
      for (auto& stat : *kind) stat.reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex d) override {
    return {limit_of(d) - allocated(d).current, limit_of(d)};
  }
};
static DeviceMemory device_memory;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &device_memory);

static void free_pinned(void* data) {
  in_pinned().remove(data);
  c10::free_cpu(data);
}

struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &free_pinned, at::kCPU};
    void* data = c10::alloc_cpu(bytes);
    in_pinned().add(data, {bytes, 0});
    return {data, data, &free_pinned, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

c10::Allocator* pinned_memory() {
  static auto* memory = new PinnedMemory();
  return memory;
}

bool is_pinned(const void* data) { return in_pinned().find(data) != nullptr; }

int device_of(const void* data) {
  auto* block = on_devices().find(data);
  return block ? block->device : current_device();
}

void limit_memory(int device, int64_t bytes) { limits[device] = bytes; }

} // namespace sim
