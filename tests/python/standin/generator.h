// Random numbers for the stand-in device.
#pragma once

#include <ATen/core/Generator.h>

namespace standin {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// Returns a CPU generator for one operator, and advances the device's generator.
at::Generator cpu_generator_for(const at::Generator& generator);

}  // namespace standin
