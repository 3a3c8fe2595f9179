// Devices for Python: memory and streams of vendors, given by their addresses.
#pragma once

#include <nanobind/nanobind.h>
#include <string>

#include "python/src/objects.h"

namespace hetcomm_python {

// The type of elements that torch and NumPy call |name|. Raises ValueError for an unknown name.
nanobind::dlpack::dtype type_named(const std::string& name);

void bind_devices(nanobind::module_& module, nanobind::class_<Context>& context);

}  // namespace hetcomm_python
