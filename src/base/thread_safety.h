// Macros for clang's thread-safety analysis. They are empty for other compilers.
//
// A capability is something that a thread holds: a lock, or the right to do something. A function
// says which capabilities its caller holds, takes or gives up, and a member says which one guards
// it. clang checks that at compile time. The macros change neither code nor layout.
#pragma once

#if defined(__clang__)
#define HETCOMM_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define HETCOMM_THREAD_ATTRIBUTE(x)
#endif

// The class is a capability, which messages of the compiler call |name|.
#define HETCOMM_CAPABILITY(name) HETCOMM_THREAD_ATTRIBUTE(capability(name))
// The class takes a capability (or takes one over) in its constructor and gives it up in its
// destructor.
#define HETCOMM_SCOPED_CAPABILITY HETCOMM_THREAD_ATTRIBUTE(scoped_lockable)

// The member is touched only by a thread that holds the capability.
#define HETCOMM_GUARDED_BY(capability) HETCOMM_THREAD_ATTRIBUTE(guarded_by(capability))

// The caller holds the capability, before and after the call.
#define HETCOMM_REQUIRES(...) HETCOMM_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
// The caller does not hold the capability.
#define HETCOMM_EXCLUDES(...) HETCOMM_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// The call takes the capability.
#define HETCOMM_ACQUIRE(...) HETCOMM_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
// The call takes the capability if it returns true.
#define HETCOMM_TRY_ACQUIRE(...) HETCOMM_THREAD_ATTRIBUTE(try_acquire_capability(true, __VA_ARGS__))
// The call gives the capability up. The destructor of a scoped capability uses it without
// arguments.
#define HETCOMM_RELEASE(...) HETCOMM_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))

// The body of the function is not analysed. A comment next to it says why.
#define HETCOMM_NO_THREAD_SAFETY_ANALYSIS HETCOMM_THREAD_ATTRIBUTE(no_thread_safety_analysis)
