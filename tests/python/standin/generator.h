// Random numbers of the stand-in device.
#pragma once

#include <ATen/core/Generator.h>

namespace standin {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// A generator of the CPU for one operator. It moves the device's generator on.
at::Generator cpu_generator_for(const at::Generator& generator);

}  // namespace standin
