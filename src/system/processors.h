// Reads and restricts the set of processors that a thread can run on.
#pragma once

#include <pthread.h>

#include "src/base/processor_set.h"

namespace hetcomm {

// Returns the processors that |thread| can run on, or the empty set if the kernel does not report
// them.
ProcessorSet processors_of(pthread_t thread);

// Restricts |thread| to those of its current processors that are in |wanted|. Never adds a
// processor. Returns whether the thread was restricted. Nothing changes if none or all of its
// processors are in |wanted|, or if the kernel forbids the change.
bool narrow_thread(pthread_t thread, const ProcessorSet& wanted);

}  // namespace hetcomm
