// What differs between versions of torch.
#pragma once

#include <torch/version.h>

#define HETCOMM_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||          \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// Backend: getBackendOptions, setTimeout, abort, shutdown, split, merge are virtual.
#if HETCOMM_TORCH_AT_LEAST(2, 8)
#define HETCOMM_TORCH_HAS_SPLIT 1
#else
#define HETCOMM_TORCH_HAS_SPLIT 0
#endif

// Backend: supportsShrinking and shrink are virtual.
#if HETCOMM_TORCH_AT_LEAST(2, 13)
#define HETCOMM_TORCH_HAS_SHRINK 1
#else
#define HETCOMM_TORCH_HAS_SHRINK 0
#endif
