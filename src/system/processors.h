// The processors that a thread may use.
#pragma once

#include <pthread.h>

#include "src/base/processor_set.h"

namespace hetcomm {

// The processors that |thread| may use. Empty: the kernel does not report them.
ProcessorSet processors_of(pthread_t thread);

// Restricts |thread| to those of its processors that are |wanted|. Never gives it one that it may
// not use already. Returns whether the thread was restricted. Nothing changes if none or all of its
// processors are wanted, or if the kernel forbids it.
bool narrow_thread(pthread_t thread, const ProcessorSet& wanted);

}  // namespace hetcomm
