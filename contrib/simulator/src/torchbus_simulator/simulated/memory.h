// Memory: of the devices, with a limit, and pinned memory of the host.
#pragma once

#include <c10/core/Allocator.h>

namespace sim {

// Bytes that a device has; an allocation beyond them raises torch.OutOfMemoryError.
void limit_memory(int device, int64_t bytes);
int device_of(const void* data);
bool is_pinned(const void* data);
c10::Allocator* pinned_memory();

} // namespace sim
