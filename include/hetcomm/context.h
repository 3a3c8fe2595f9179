/* Context: the root of everything a process does with hetcomm. It holds the configuration, the
 * devices, the transports and the progress engine. Nothing is shared between two contexts.     */
#ifndef HETCOMM_CONTEXT_H_
#define HETCOMM_CONTEXT_H_

#include <hetcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_context hetcomm_context_t;

/* Who drives communication between calls. */
enum {
  HETCOMM_PROGRESS_DEFAULT = 0, /* HETCOMM_PROGRESS, else caller                               */
  HETCOMM_PROGRESS_CALLER = 1,  /* whoever waits or tests; nothing happens between calls       */
  HETCOMM_PROGRESS_THREAD = 2   /* a background thread as well; waiting threads still take over */
};

/* Log levels, most severe first. */
enum {
  HETCOMM_LOG_ERROR = 1,
  HETCOMM_LOG_WARN = 2,
  HETCOMM_LOG_INFO = 3,
  HETCOMM_LOG_DEBUG = 4,
  HETCOMM_LOG_TRACE = 5
};

/* Receives log lines; |line| has no newline and lives for the call. May come from any thread,
 * never two at a time. Must not call hetcomm. */
typedef void (*hetcomm_log_function_t)(void* user_data, int32_t level, const char* line);

typedef struct hetcomm_context_options {
  size_t struct_size;                  /* sizeof at the caller's compile time                    */
  int32_t progress;                    /* HETCOMM_PROGRESS_*                                     */
  int32_t log_level;                   /* HETCOMM_LOG_*; 0: HETCOMM_LOG, else warn               */
  hetcomm_log_function_t log_function; /* NULL: HETCOMM_LOG_FILE, or else standard error         */
  void* log_user_data;
  /* Settings that win over the environment: "NAME=value;NAME=value" with the names that
   * `hetcomm_info --variables` lists, prefix HETCOMM_ optional. NULL: none.                   */
  const char* settings;
} hetcomm_context_options_t;

/* Creates a context. |options| may be NULL. Reads the HETCOMM_* environment once; unknown names are
 * warned about. Fails with INVALID_ARGUMENT for a value that cannot be parsed (the text names the
 * variable), OUT_OF_RESOURCES when the process has no descriptors left. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_create(
    const hetcomm_context_options_t* options, hetcomm_context_t** out_context) HETCOMM_NOEXCEPT;

/* Frees the context. Fails with BUSY while a communicator or a memory of it still exists; then
 * nothing has changed. NULL is accepted. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_destroy(hetcomm_context_t* context)
    HETCOMM_NOEXCEPT;

/* Drives communication once without waiting, for callers in caller mode that want to overlap.
 * Never blocks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_progress(hetcomm_context_t* context)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_CONTEXT_H_ */
