// Binds the layouts and plans of resharding. hetcomm/reshard/ wraps them for users.
#pragma once

#include <nanobind/nanobind.h>

namespace hetcomm_python {

void bind_reshard(nanobind::module_& module);

}  // namespace hetcomm_python
