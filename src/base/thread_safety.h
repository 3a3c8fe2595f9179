// Defines macros for clang's thread-safety analysis. They expand to nothing for other compilers.
//
// A capability is something that a thread holds: a lock, or the right to do something. A function
// declares which capabilities its caller holds, acquires or releases, and a member declares which
// one guards it. clang checks the declarations at compile time. The macros change neither code nor
// layout.
#pragma once

#if defined(__clang__)
#define HETCOMM_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define HETCOMM_THREAD_ATTRIBUTE(x)
#endif

// Declares the class to be a capability, which compiler messages call |name|.
#define HETCOMM_CAPABILITY(name) HETCOMM_THREAD_ATTRIBUTE(capability(name))
// Declares that the class acquires (or adopts) a capability in its constructor and releases it in
// its destructor.
#define HETCOMM_SCOPED_CAPABILITY HETCOMM_THREAD_ATTRIBUTE(scoped_lockable)

// Marks a member that only a thread with the capability accesses.
#define HETCOMM_GUARDED_BY(capability) HETCOMM_THREAD_ATTRIBUTE(guarded_by(capability))

// Marks a function whose caller holds the capability before and after the call.
#define HETCOMM_REQUIRES(...) HETCOMM_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
// Marks a function whose caller does not hold the capability.
#define HETCOMM_EXCLUDES(...) HETCOMM_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
// Marks a function that acquires the capability.
#define HETCOMM_ACQUIRE(...) HETCOMM_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
// Marks a function that acquires the capability if it returns true.
#define HETCOMM_TRY_ACQUIRE(...) HETCOMM_THREAD_ATTRIBUTE(try_acquire_capability(true, __VA_ARGS__))
// Marks a function that releases the capability. The destructor of a scoped capability uses the
// macro without arguments.
#define HETCOMM_RELEASE(...) HETCOMM_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))

// Excludes the function's body from the analysis. A comment at each use gives the reason.
#define HETCOMM_NO_THREAD_SAFETY_ANALYSIS HETCOMM_THREAD_ATTRIBUTE(no_thread_safety_analysis)
