// Defines a macro for each feature in which PyTorch versions from 2.6 to 2.15 differ.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/version.h>

#define HETCOMM_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) ||          \
   (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

// Backend: supportsCoalescing, abort and shutdown are virtual.
#define HETCOMM_TORCH_HAS_ENDS HETCOMM_TORCH_AT_LEAST(2, 7)

// Backend: split, merge, setTimeout and getBackendOptions are virtual. Its options contain the
// group's name and ranks.
#define HETCOMM_TORCH_HAS_SPLIT HETCOMM_TORCH_AT_LEAST(2, 9)

// Backend: supportsShrinking and shrink are virtual.
#define HETCOMM_TORCH_HAS_SHRINK HETCOMM_TORCH_AT_LEAST(2, 10)

// Backend: gather_into_tensor, reconfigure and its companions, and clone of the options are
// virtual. Rank and size may change.
#define HETCOMM_TORCH_HAS_RECONFIGURE HETCOMM_TORCH_AT_LEAST(2, 14)

// Groups of any backend accept hooks, through which PyTorch's flight recorder sees their
// operations.
#define HETCOMM_TORCH_HAS_HOOKS HETCOMM_TORCH_AT_LEAST(2, 14)

// Backend: supportsCompletionHooks, registerCompletionHook, unregisterCompletionHook and
// supportsAbortHooks are virtual. A work's getCompletionKey is also virtual. PyTorch attaches its
// flight recorder to each group through these functions.
#define HETCOMM_TORCH_HAS_COMPLETION_HOOKS HETCOMM_TORCH_AT_LEAST(2, 15)
