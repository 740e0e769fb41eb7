// What the files of the simulated accelerator share. Its memory is host memory, its kernels are
// the CPU's; streams, waits, limits and random numbers behave as a GPU's do.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <functional>

namespace sim {

using at::Tensor;
using Task = std::function<void()>;

inline bool is_here(const Tensor& t) { return t.device().type() == at::kPrivateUse1; }

int current_device();
bool runs_late();

// The first use makes the process unable to fork: a child that uses the device gets an error.
void initialise();

// Count a wait of the host for the device, and tell Python, which notes its line.
void host_waits(const char* what);

// Run a task in the order of a device's current stream: at once, or late.
void submit(int device, Task task);
// Run what the current stream of a device still has to do.
void finish_stream(int device);
void finish_device(int device);

// The CPU's view of a tensor's memory, which it keeps alive.
Tensor host(const Tensor& t);
Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype, int device);

// The random state of a device, as the CPU's generators keep it.
Tensor random_state(int device);
void set_random_state(int device, const Tensor& state);

} // namespace sim
