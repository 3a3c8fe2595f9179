/* What this build and this machine offer: for tools and bug reports.                           */
#ifndef HETCOMM_INFO_H_
#define HETCOMM_INFO_H_

#include <hetcomm/context.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HETCOMM_VERSION_MAJOR 0
#define HETCOMM_VERSION_MINOR 1
#define HETCOMM_VERSION_PATCH 0
/* Changes only when an existing binary would stop working. */
#define HETCOMM_ABI_VERSION 0

/* "0.1.0". Static storage. [any-thread] */
HETCOMM_API const char* hetcomm_version_string(void) HETCOMM_NOEXCEPT;
/* HETCOMM_ABI_VERSION that the loaded library was built with. [any-thread] */
HETCOMM_API uint32_t hetcomm_abi_version(void) HETCOMM_NOEXCEPT;
/* Compiler, build type and options, one line. Static storage. [any-thread] */
HETCOMM_API const char* hetcomm_build_string(void) HETCOMM_NOEXCEPT;

typedef struct hetcomm_variable_info {
  size_t struct_size;        /* as in hetcomm_transport_info_t                                  */
  const char* name;          /* "HETCOMM_LOG"                                                   */
  const char* default_value; /* as it would be written                                          */
  const char* meaning;       /* one sentence, and which values there are where not all are     */
} hetcomm_variable_info_t;

/* Describes variable |index|; OUT_OF_RANGE past the last. Static storage. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_variable_describe(size_t index, hetcomm_variable_info_t* out_info) HETCOMM_NOEXCEPT;

/* Value in force for the variable |name| in |context|. Secrets are never shown. Borrowed from the
 * context. NOT_FOUND when there is no such variable. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_variable(
    hetcomm_context_t* context, const char* name, const char** out_value) HETCOMM_NOEXCEPT;

typedef struct hetcomm_transport_info {
  size_t struct_size; /* sizeof at the caller's compile time: set it before the call            */
  char name[16];
  int32_t usable;
  char reason[200]; /* why it is not usable, or what was found                                 */
} hetcomm_transport_info_t;

/* Describes transport |index| on this machine; OUT_OF_RANGE past the last. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_context_transport(
    hetcomm_context_t* context, size_t index, hetcomm_transport_info_t* out_info) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_INFO_H_ */
