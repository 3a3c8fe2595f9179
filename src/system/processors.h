// The processors that a thread may use.
#pragma once

#include <pthread.h>

#include "src/base/processor_set.h"

namespace hetcomm {

// The processors that |thread| may use. Empty: the kernel does not say.
ProcessorSet processors_of(pthread_t thread);

// Makes |thread| use only those of its processors that are |wanted|. Never gives it one that it may
// not use already. Returns whether it has been moved; it goes on where it is if none of its
// processors, or all of them, are wanted, and where the kernel forbids it.
bool narrow_thread(pthread_t thread, const ProcessorSet& wanted);

}  // namespace hetcomm
