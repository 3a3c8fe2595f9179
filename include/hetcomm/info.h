/* Describes this build and the transports of this machine, for tools and bug reports. */
#ifndef HETCOMM_INFO_H_
#define HETCOMM_INFO_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HETCOMM_VERSION_MAJOR 0
#define HETCOMM_VERSION_MINOR 2
#define HETCOMM_VERSION_PATCH 0
/* Version of the binary interface. It changes only when existing binaries would stop working. */
#define HETCOMM_ABI_VERSION 0

/* Returns the version of the loaded library, such as "0.2.0". The string is in static storage.
 * [any-thread] */
HETCOMM_API const char* hetcomm_version_string(void) HETCOMM_NOEXCEPT;
/* Returns the HETCOMM_ABI_VERSION that the loaded library was built with. [any-thread] */
HETCOMM_API uint32_t hetcomm_abi_version(void) HETCOMM_NOEXCEPT;
/* Returns the compiler, the build type and the sanitizers in one line. The string is in static
 * storage. [any-thread] */
HETCOMM_API const char* hetcomm_build_string(void) HETCOMM_NOEXCEPT;

/* An environment variable that configures hetcomm. The strings are in static storage. */
typedef struct hetcomm_variable_info {
  /* The caller sets it to sizeof(hetcomm_variable_info_t). */
  size_t struct_size;
  /* Name with the prefix, such as "HETCOMM_LOG". */
  const char* name;
  /* Default value, in the syntax of the environment. */
  const char* default_value;
  /* Description of the variable, followed by the allowed values if they are a list or a range. */
  const char* meaning;
} hetcomm_variable_info_t;

/* Describes variable |index|. OUT_OF_RANGE: there is no such variable. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_variable_describe(size_t index, hetcomm_variable_info_t* out_info) HETCOMM_NOEXCEPT;

/* Gets the value of the variable |name| in |context|, as text. |name| includes the prefix HETCOMM_.
 * The value of a secret is shown as "(set)". |*out_value| stays valid as long as the context
 * exists. NOT_FOUND: there is no such variable. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_variable(
    hetcomm_context_t* context, const char* name, const char** out_value) HETCOMM_NOEXCEPT;

typedef struct hetcomm_transport_info {
  /* The caller sets it to sizeof(hetcomm_transport_info_t). */
  size_t struct_size;
  /* Name, such as "tcp", NUL-terminated. */
  char name[16];
  /* 1 if the transport can be used on this machine, otherwise 0. */
  int32_t usable;
  /* The reason why the transport cannot be used, or a description of what the probe found.
   * Truncated to fit, NUL-terminated. */
  char reason[200];
} hetcomm_transport_info_t;

/* Probes and describes transport |index|. OUT_OF_RANGE: there is no such transport. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_transport(
    hetcomm_context_t* context, size_t index, hetcomm_transport_info_t* out_info) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_INFO_H_ */
