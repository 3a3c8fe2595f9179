// Binds devices: memory and streams of vendors' libraries, identified by their addresses.
#pragma once

#include <nanobind/nanobind.h>

#include "python/src/objects.h"

namespace hetcomm_python {

void bind_devices(nanobind::module_& module, nanobind::class_<Context>& context);

}  // namespace hetcomm_python
