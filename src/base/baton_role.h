// BatonRole represents a context's baton, the lock of its engine, in clang's thread-safety
// analysis.
//
// Only the thread that holds a context's baton touches the state of the core and the transports.
// The one exception is state that a transport shares with its own threads. One role represents the
// batons of all contexts, because clang cannot tell that two expressions name the same engine. No
// thread ever holds two batons. The lock itself is BatonLock in src/core/progress.
#pragma once

#include "src/base/thread_safety.h"

namespace hetcomm {

class HETCOMM_CAPABILITY("baton") BatonRole {};

// Only attributes name this object, so it has no definition.
extern BatonRole baton_role;

}  // namespace hetcomm

// Marks a function whose caller holds the baton.
#define HETCOMM_UNDER_BATON HETCOMM_REQUIRES(::hetcomm::baton_role)
// Marks a member that only the holder of the baton accesses.
#define HETCOMM_GUARDED_BY_BATON HETCOMM_GUARDED_BY(::hetcomm::baton_role)
