/* Defines the status codes. One table lists the value, the name and the text of each code.
 *
 * The range of a value says how far a failure reaches. New codes are added at the end of a range,
 * and no code is ever renumbered.
 *     0, 1      success, still running
 *    -1 .. -39  only the call or the operation failed
 *   -40 .. -59  the peer or the communicator cannot be used: rebuild without it
 *   -60 .. -79  the device or the network interface cannot be used
 *   -80 .. -99  the context cannot be used */
#ifndef HETCOMM_STATUS_H_
#define HETCOMM_STATUS_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HETCOMM_API __attribute__((visibility("default")))
#else
#define HETCOMM_API
#endif

#if defined(__cplusplus) && __cplusplus >= 201703L
#define HETCOMM_NODISCARD [[nodiscard]]
#elif defined(__GNUC__)
#define HETCOMM_NODISCARD __attribute__((warn_unused_result))
#else
#define HETCOMM_NODISCARD
#endif

#if defined(__cplusplus) && __cplusplus >= 201103L
#define HETCOMM_NOEXCEPT noexcept
#else
#define HETCOMM_NOEXCEPT
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define HETCOMM_STATUS_MAP(X)                                                               \
  X(OK, 0, "success")                                                                       \
  X(PENDING, 1, "not finished yet (not an error)")                                          \
  X(INVALID_ARGUMENT, -1, "an argument or a handle is invalid")                             \
  X(OUT_OF_MEMORY, -2, "host or device memory is exhausted")                                \
  X(TIMED_OUT, -3, "the deadline passed")                                                   \
  X(CANCELLED, -4, "cancelled by the caller")                                               \
  X(UNSUPPORTED, -5, "nothing here offers this operation on these arguments")               \
  X(BUSY, -6, "in use by a pending operation")                                              \
  X(STALE_HANDLE, -7, "the handle was released before")                                     \
  X(TRUNCATED, -8, "the message was longer than the receive buffer")                        \
  X(OUT_OF_RANGE, -9, "a rank, offset or length lies outside of its object")                \
  X(OUT_OF_RESOURCES, -10, "descriptors or another limited resource are exhausted")         \
  X(PERMISSION_DENIED, -11, "the proof of the job secret or an access right failed")        \
  X(NOT_FOUND, -12, "no such object")                                                       \
  X(FORKED, -13, "the handle belongs to the parent process; forked children cannot use it") \
  X(INTERNAL, -14, "a bug in hetcomm; please report it")                                    \
  X(OUTCOME_UNKNOWN, -15, "it cannot be learned whether the operation happened")            \
  X(PEER_LOST, -40, "the peer died, left or cannot be reached")                             \
  X(ABORTED, -41, "the communicator was aborted")                                           \
  X(BOOTSTRAP_FAILED, -42, "the ranks could not find each other")                           \
  X(MISMATCH, -43, "ranks disagree about a collective operation")                           \
  X(UNREACHABLE, -44, "the peer may live, but no connection to it can be made")             \
  X(DEVICE_LOST, -60, "an accelerator or a network interface failed")                       \
  X(CONTEXT_FAILED, -80, "the context is unusable")

/* Holds a status code. The type has a fixed width, because the size of an enum can differ between
 * compilers. */
typedef int32_t hetcomm_status_t;

enum {
#define HETCOMM_STATUS_ENUM_(name, value, text) HETCOMM_##name = (value),
  HETCOMM_STATUS_MAP(HETCOMM_STATUS_ENUM_)
#undef HETCOMM_STATUS_ENUM_
      HETCOMM_STATUS_FORCE_INT_ = 0x7fffffff
};

/* Returns the name of a status without its prefix, such as "PEER_LOST". Returns "UNKNOWN" for a
 * value that is not a status code. The string is in static storage. [any-thread] */
HETCOMM_API const char* hetcomm_status_name(hetcomm_status_t status) HETCOMM_NOEXCEPT;

/* Returns a one-line description of a status, such as "the deadline passed". The string is in
 * static storage. [any-thread] */
HETCOMM_API const char* hetcomm_status_text(hetcomm_status_t status) HETCOMM_NOEXCEPT;

/* Returns the error text of this thread's last failed call, or "" if no call has failed. A
 * successful call does not change the text. The string is borrowed until this thread's next hetcomm
 * call. [any-thread] */
HETCOMM_API const char* hetcomm_last_error(void) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_STATUS_H_ */
