/* Context: the root of everything a process does with hetcomm. It holds the configuration, the
 * devices, the transports and the progress engine. Nothing is shared between two contexts.     */
#ifndef HETCOMM_CONTEXT_H_
#define HETCOMM_CONTEXT_H_

#include <hetcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_context hetcomm_context_t;

/* Who makes progress, that is, moves data and handles time limits. */
enum {
  /* HETCOMM_PROGRESS decides: CALLER unless it says "thread". */
  HETCOMM_PROGRESS_DEFAULT = 0,
  /* Threads of the caller do, in calls that wait, test or post. Between calls no data moves. */
  HETCOMM_PROGRESS_CALLER = 1,
  /* A background thread does as well. A thread that waits takes over from it. */
  HETCOMM_PROGRESS_THREAD = 2
};

/* Log levels, most severe first. */
enum {
  HETCOMM_LOG_ERROR = 1,
  HETCOMM_LOG_WARN = 2,
  HETCOMM_LOG_INFO = 3,
  HETCOMM_LOG_DEBUG = 4,
  HETCOMM_LOG_TRACE = 5
};

/* Receives one line of the log, "hetcomm[host:rank pid N time] level: text" with the time in UTC.
 * |level| is one of HETCOMM_LOG_*. |line| has no newline and is valid during the call.
 * Threads of the caller and of the library call the function, never two at a time.
 * It must not call hetcomm. It is called until hetcomm_context_destroy has returned OK, or
 * hetcomm_context_create has failed; |user_data| has to live as long. */
typedef void (*hetcomm_log_function_t)(void* user_data, int32_t level, const char* line);

typedef struct hetcomm_context_options {
  /* The caller sets it to sizeof(hetcomm_context_options_t). */
  size_t struct_size;
  /* HETCOMM_PROGRESS_*. */
  int32_t progress;
  /* Least severe level that is logged, HETCOMM_LOG_*. 0: HETCOMM_LOG, which is warn unless set. */
  int32_t log_level;
  /* Gets the lines of the log, beside the file of HETCOMM_LOG_FILE if that is set. NULL: they go to
   * that file, or else to standard error. */
  hetcomm_log_function_t log_function;
  /* Passed to |log_function|. */
  void* log_user_data;
  /* Settings that win over the environment: "NAME=value;NAME=value", with the names that
   * `hetcomm_info --variables` lists; the prefix HETCOMM_ may be left out. NULL: none. */
  const char* settings;
} hetcomm_context_options_t;

/* Creates a context and reads the HETCOMM_* variables of the environment, once. It warns of
 * variables that it does not know. |options| may be NULL. In a program that has more rights than
 * whoever started it (setuid, setgid, file capabilities), variables that name files or libraries do
 * not count, and a warning lists them; |settings| count.
 *   INVALID_ARGUMENT   An option, a setting or a variable has a value that is not allowed, or a
 *                      setting is not known; the text names it.
 *   PERMISSION_DENIED  A variable that does not count is about trust (secret, TLS), and |settings|
 *                      do not give it.
 *   OUT_OF_RESOURCES   The process has no descriptors left.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_create(
    const hetcomm_context_options_t* options, hetcomm_context_t** out_context) HETCOMM_NOEXCEPT;

/* Frees the context and all requests of it. BUSY: a bootstrap, a communicator, a memory or a stream
 * of the context still exists; then nothing has changed. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_destroy(hetcomm_context_t* context)
    HETCOMM_NOEXCEPT;

/* Drives communication once, for callers without a background thread that compute while data moves.
 * Does not wait, and does nothing while another thread drives communication. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_progress(hetcomm_context_t* context)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_CONTEXT_H_ */
