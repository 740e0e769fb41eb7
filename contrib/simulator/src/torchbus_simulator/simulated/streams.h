// Streams: each one is a queue of tasks. A late stream runs a task when somebody waits for it.
#pragma once

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <chrono>
#include <deque>
#include <map>
#include <mutex>

#include "device.h"

namespace sim {

struct Queue {
  std::deque<Task> tasks;
  uint64_t queued = 0;
  uint64_t done = 0;
};

struct Event {
  c10::StreamId stream;
  c10::DeviceIndex device;
  uint64_t place;
  std::chrono::steady_clock::time_point when;
};

constexpr int DEVICES_AT_MOST = 64;
constexpr size_t TASKS_AT_MOST = 4096;

class Streams {
 public:
  c10::Stream current(int device) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(at::kPrivateUse1, device), stream_ids()[device]);
  }
  void make_current(c10::Stream s) { stream_ids()[s.device_index()] = s.id(); }
  c10::Stream make(int device) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(at::kPrivateUse1, device), ++last_id_);
  }
  void add(c10::Stream s, Task task) {
    std::lock_guard<std::recursive_mutex> held(lock_);
    auto& queue = of(s);
    queue.tasks.push_back(std::move(task));
    queue.queued++;
    if (queue.tasks.size() > TASKS_AT_MOST) run(s, queue.queued);
  }
  uint64_t place(c10::Stream s) {
    std::lock_guard<std::recursive_mutex> held(lock_);
    return of(s).queued;
  }
  bool is_done(c10::Stream s, uint64_t place) {
    std::lock_guard<std::recursive_mutex> held(lock_);
    return of(s).done >= place;
  }
  void run(c10::Stream s, uint64_t place) {
    std::lock_guard<std::recursive_mutex> held(lock_);
    auto& queue = of(s);
    while (queue.done < place && !queue.tasks.empty()) {
      auto task = std::move(queue.tasks.front());
      queue.tasks.pop_front();
      queue.done++;
      task();
    }
  }
  void run_all(int device) {
    std::lock_guard<std::recursive_mutex> held(lock_);
    for (auto& [key, queue] : queues_)
      if (key.first == device)
        run(c10::Stream(c10::Stream::UNSAFE, c10::Device(at::kPrivateUse1, device), key.second), queue.queued);
  }

 private:
  Queue& of(c10::Stream s) { return queues_[{s.device_index(), s.id()}]; }
  static c10::StreamId* stream_ids() {
    static thread_local c10::StreamId ids[DEVICES_AT_MOST] = {};
    return ids;
  }
  std::recursive_mutex lock_;
  std::map<std::pair<int, c10::StreamId>, Queue> queues_;
  c10::StreamId last_id_ = 0;
};

Streams& streams();

} // namespace sim
