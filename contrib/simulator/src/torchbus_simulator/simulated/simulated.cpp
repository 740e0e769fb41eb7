// One unit: torch's headers are read once.
#include "memory.cpp"

#include "device.cpp"

#include "kernels.cpp"

#include "collectives.cpp"
