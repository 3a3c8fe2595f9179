/* A context is the root object of the library. It holds the configuration, the devices, the
 * transports and the progress engine. Contexts share nothing with each other. */
#ifndef HETCOMM_CONTEXT_H_
#define HETCOMM_CONTEXT_H_

#include <hetcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_context hetcomm_context_t;

/* Selects the threads that make progress: they move data and enforce time limits. */
enum {
  /* The variable HETCOMM_PROGRESS selects the mode: THREAD if it is "thread", otherwise CALLER. */
  HETCOMM_PROGRESS_DEFAULT = 0,
  /* The caller's threads make progress in calls that wait, test or post. Between such calls the
   * library moves no data. */
  HETCOMM_PROGRESS_CALLER = 1,
  /* A background thread also makes progress. While a caller's thread waits, it makes progress in
   * place of the background thread. */
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

/* Receives one line of the log: "hetcomm[host:rank pid N time] level: text", with the time in UTC.
 * |level| is one of HETCOMM_LOG_*. |line| has no newline and is valid only during the call. Threads
 * of the caller and of the library call the function, but never two at a time. The function must
 * not call hetcomm. It is not called any more after hetcomm_context_destroy has returned OK, or
 * hetcomm_context_create has failed. |user_data| must stay valid until then. */
typedef void (*hetcomm_log_function_t)(void* user_data, int32_t level, const char* line);

typedef struct hetcomm_context_options {
  /* The caller sets it to sizeof(hetcomm_context_options_t). */
  size_t struct_size;
  /* One of HETCOMM_PROGRESS_*. */
  int32_t progress;
  /* Least severe level that is logged, one of HETCOMM_LOG_*. 0: the level in the variable
   * HETCOMM_LOG, or warn if it is not set. */
  int32_t log_level;
  /* Receives the lines of the log, which are also written to the file in HETCOMM_LOG_FILE if it is
   * set. NULL: the lines are written only to that file, or to standard error if it is not set. */
  hetcomm_log_function_t log_function;
  /* Passed to |log_function|. */
  void* log_user_data;
  /* Settings that override the environment, as "NAME=value;NAME=value". `hetcomm_info --variables`
   * lists the names. The prefix HETCOMM_ may be omitted. NULL: no settings. */
  const char* settings;
} hetcomm_context_options_t;

/* Creates a context. The call reads the HETCOMM_* environment variables, which are not read again
 * later, and warns about unknown ones. |options| may be NULL. If the program has more privileges
 * than the user who started it (setuid, setgid, file capabilities), the call ignores variables that
 * name files or libraries, and lists them in a warning. It still uses |settings|.
 *   INVALID_ARGUMENT   An option, a setting or a variable has an invalid value, or a setting is
 *                      unknown; the text names it.
 *   PERMISSION_DENIED  An ignored variable configures security (secret, TLS), and |settings| do not
 *                      set it.
 *   OUT_OF_RESOURCES   The process has no file descriptors left.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_create(
    const hetcomm_context_options_t* options, hetcomm_context_t** out_context) HETCOMM_NOEXCEPT;

/* Frees the context and all of its requests. BUSY: a bootstrap, a communicator, a memory or a
 * stream of the context still exists; the call has changed nothing. NULL is accepted.
 * [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_destroy(hetcomm_context_t* context)
    HETCOMM_NOEXCEPT;

/* Makes progress once, without waiting. The function is for callers that compute while data moves
 * and have no background thread. It does nothing while another thread is making progress or is
 * waiting for work. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_progress(hetcomm_context_t* context)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_CONTEXT_H_ */
