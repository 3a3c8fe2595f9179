// Binds pipelines and their schedules.
#pragma once

#include <nanobind/nanobind.h>

namespace hetcomm_python {

void bind_pipeline(nanobind::module_& module);

}  // namespace hetcomm_python
