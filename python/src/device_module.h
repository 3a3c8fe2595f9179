// Gives Python programs devices: memory and streams of vendors, named by their addresses.
#pragma once

#include <nanobind/nanobind.h>
#include <string>

#include "python/src/objects.h"

namespace hetcomm_python {

// Returns the element type that torch and NumPy call |name|. Raises ValueError for an unknown name.
nanobind::dlpack::dtype type_named(const std::string& name);

void bind_devices(nanobind::module_& module, nanobind::class_<Context>& context);

}  // namespace hetcomm_python
