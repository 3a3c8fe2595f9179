// The baton of a context, as clang's thread-safety analysis knows it.
//
// Only the holder of a context's baton touches the state of core and of transports, except for what
// a transport shares with its own threads. One role stands for the batons of all contexts: clang
// cannot tell that two expressions name the same engine, and no thread holds two batons. The lock
// itself is BatonLock in src/core/progress.
#pragma once

#include "src/base/thread_safety.h"

namespace hetcomm {

class HETCOMM_CAPABILITY("baton") BatonRole {};

// Only attributes name this object, so it has no definition.
extern BatonRole baton_role;

}  // namespace hetcomm

// Marks a function whose caller holds the baton.
#define HETCOMM_UNDER_BATON HETCOMM_REQUIRES(::hetcomm::baton_role)
// Marks a member that only the holder of the baton touches.
#define HETCOMM_GUARDED_BY_BATON HETCOMM_GUARDED_BY(::hetcomm::baton_role)
