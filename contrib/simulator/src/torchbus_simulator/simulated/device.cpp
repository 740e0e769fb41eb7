// Devices, streams, events, random generators and the words of Python.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/utils/pybind.h>
#include <atomic>
#include <unistd.h>

#include "memory.h"
#include "streams.h"

namespace py = pybind11;

namespace sim {

static thread_local int current = 0;
static int in_machine = 2;
static int devices = 0; // that this process sees: known from its first use on
static bool late = false;
static std::atomic<pid_t> owner{0};
static std::atomic<int64_t> waits{0};
static PyObject* listener = nullptr;

Streams& streams() {
  static auto* all = new Streams();
  return *all;
}

int current_device() { return current; }
bool runs_late() { return late; }

// SIM_VISIBLE_DEVICES says which devices a process sees, as CUDA_VISIBLE_DEVICES does for CUDA.
static int count_devices() {
  if (devices > 0) return devices;
  const char* told = std::getenv("SIM_VISIBLE_DEVICES");
  if (told == nullptr) return in_machine;
  int count = 0;
  for (const char* one = told; *one; one++)
    if (*one != ',' && (one == told || one[-1] == ',')) count++;
  return std::min(count, in_machine);
}

void initialise() {
  pid_t mine = getpid(), before = 0;
  if (!owner.compare_exchange_strong(before, mine))
    TORCH_CHECK(before == mine, "Cannot re-initialize sim in forked subprocess. To use sim with "
                "multiprocessing, you must use the 'spawn' start method");
  if (devices == 0) devices = count_devices();
}

void host_waits(const char* what) {
  waits++;
  if (listener == nullptr) return;
  py::gil_scoped_acquire held;
  py::reinterpret_borrow<py::object>(listener)(what);
}

void submit(int device, Task task) {
  if (late) streams().add(streams().current(device), std::move(task));
  else task();
}

void finish_stream(int device) {
  auto s = streams().current(device);
  streams().run(s, streams().place(s));
}

void finish_device(int device) { streams().run_all(device); }

static c10::Stream stream_of(const Event* e) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(at::kPrivateUse1, e->device), e->stream);
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  using Device = c10::Device;
  using Stream = c10::Stream;
  c10::DeviceType type() const override { return at::kPrivateUse1; }
  Device exchangeDevice(Device d) const override {
    Device before(at::kPrivateUse1, current);
    setDevice(d);
    return before;
  }
  Device getDevice() const override { return Device(at::kPrivateUse1, current); }
  void setDevice(Device d) const override {
    TORCH_CHECK(d.index() < count_devices(), "invalid device ordinal: sim:", int(d.index()), "; there are ", count_devices());
    if (d.index() >= 0) current = d.index();
  }
  void uncheckedSetDevice(Device d) const noexcept override { current = d.index(); }
  Stream getStream(Device d) const override { return streams().current(d.has_index() ? d.index() : current); }
  Stream getDefaultStream(Device d) const override { return Stream(Stream::DEFAULT, d); }
  Stream getNewStream(Device d, int) const override { return streams().make(d.has_index() ? d.index() : current); }
  Stream getStreamFromGlobalPool(Device d, bool) const override { return getNewStream(d, 0); }
  Stream exchangeStream(Stream s) const override {
    auto before = streams().current(s.device_index());
    streams().make_current(s);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return count_devices(); }
  void record(void** event, const Stream& s, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) *event = new Event();
    *static_cast<Event*>(*event) = {s.id(), s.device_index(), streams().place(s), std::chrono::steady_clock::now()};
  }
  void block(void* event, const Stream& s) const override {
    if (event == nullptr) return;
    Event copy = *static_cast<Event*>(event);
    if (late) streams().add(s, [copy] { streams().run(stream_of(&copy), copy.place); });
  }
  // A question lets the stream go on, so that a later one finds it ready.
  bool queryEvent(void* event) const override {
    if (event == nullptr) return true;
    auto* e = static_cast<Event*>(event);
    bool done = streams().is_done(stream_of(e), e->place);
    streams().run(stream_of(e), e->place);
    return done;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  bool queryStream(const Stream& s) const override { return streams().is_done(s, streams().place(s)); }
  void synchronizeStream(const Stream& s) const override {
    host_waits("stream.synchronize");
    streams().run(s, streams().place(s));
  }
  void synchronizeEvent(void* event) const override {
    if (event == nullptr) return;
    auto* e = static_cast<Event*>(event);
    if (!streams().is_done(stream_of(e), e->place)) host_waits("event.synchronize");
    streams().run(stream_of(e), e->place);
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override {
    host_waits("synchronize");
    streams().run_all(d);
  }
  double elapsedTime(void* begin, void* end, const c10::DeviceIndex) const override {
    return std::chrono::duration<double, std::milli>(static_cast<Event*>(end)->when - static_cast<Event*>(begin)->when).count();
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

// The numbers come from a generator of the CPU's kind, which belongs to the device.
struct Generator final : c10::GeneratorImpl {
  at::Generator inner;
  explicit Generator(c10::DeviceIndex i)
      : GeneratorImpl(c10::Device(at::kPrivateUse1, i), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        inner(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t) override {}
  uint64_t get_offset() const override { return 0; }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    finish_device(device_.index());
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override {
    auto* other = new Generator(device_.index());
    other->inner = inner.clone();
    return other;
  }
};

static at::Generator& generator(int device) {
  static auto* all = [] {
    auto* made = new std::vector<at::Generator>();
    for (int i = 0; i < DEVICES_AT_MOST; i++) made->push_back(at::make_generator<Generator>(i));
    return made;
  }();
  return all->at(device < 0 ? current : device);
}

at::Generator inner_generator(const std::optional<at::Generator>& given, int device) {
  auto one = given.has_value() && given->defined() ? *given : generator(device);
  TORCH_CHECK(one.device().type() == at::kPrivateUse1, "Expected a 'sim' device type for generator but found '", one.device().type(), "'");
  return static_cast<Generator*>(one.unsafeGetGeneratorImpl())->inner;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return count_devices() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return owner == getpid(); }
  void init() const override { initialise(); }
  c10::DeviceIndex deviceCount() const override { return count_devices(); }
  void setCurrentDevice(c10::DeviceIndex d) const override { Guard().setDevice({at::kPrivateUse1, d}); }
  c10::DeviceIndex getCurrentDevice() const override { return current; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    auto before = current;
    if (d >= 0) setCurrentDevice(d);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return exchangeDevice(d); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex d) const override { return generator(d); }
  at::Generator getNewGenerator(c10::DeviceIndex d) const override { return at::make_generator<Generator>(d < 0 ? current : d); }
  c10::Device getDeviceFromPtr(void* data) const override { return c10::Device(at::kPrivateUse1, device_of(data)); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_memory(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    finish_device(storage.device().index());
    at::native::resize_bytes_cpu(storage.unsafeGetStorageImpl(), bytes);
  }
};
static bool registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

void define_collectives(py::module& m);

} // namespace sim

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace sim;
  m.def("configure", [](int count, bool runs_late) { in_machine = count; late = runs_late; });
  m.def("listen", [](py::object heard) { listener = heard.is_none() ? nullptr : heard.release().ptr(); });
  m.def("waits", [] { return waits.load(); });
  m.def("get_device", [] { return current; });
  m.def("set_device", [](int d) { initialise(); Guard().setDevice({at::kPrivateUse1, static_cast<c10::DeviceIndex>(d)}); });
  m.def("device_count", &count_devices);
  m.def("initialise", &initialise);
  m.def("is_initialised", [] { return owner == getpid(); });
  m.def("is_in_bad_fork", [] { return owner != 0 && owner != getpid(); });
  m.def("generator", [](int d) { return generator(d); });
  m.def("limit_memory", &limit_memory);
  define_collectives(m);
}
