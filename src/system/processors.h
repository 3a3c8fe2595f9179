// Reads and restricts the set of processors that a thread may use.
#pragma once

#include <pthread.h>

#include "src/base/processor_set.h"

namespace hetcomm {

// Returns the processors that |thread| may use; empty if the kernel does not report them.
ProcessorSet processors_of(pthread_t thread);

// Restricts |thread| to those of its processors that are |wanted|. Never adds a processor that the
// thread may not use already. Returns whether the thread was restricted. Nothing changes if none or
// all of its processors are wanted, or if the kernel forbids the change.
bool narrow_thread(pthread_t thread, const ProcessorSet& wanted);

}  // namespace hetcomm
