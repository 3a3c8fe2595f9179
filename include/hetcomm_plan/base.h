/* Declares the output formats, the version and the error texts of libhetcomm_plan. */
#ifndef HETCOMM_PLAN_BASE_H_
#define HETCOMM_PLAN_BASE_H_

#include <stddef.h>
#include <stdint.h>

#include <hetcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Output formats. Functions call the format |form|. */
enum {
  HETCOMM_PLAN_TEXT = 0, /* human-readable UTF-8 text */
  HETCOMM_PLAN_JSON = 1, /* a JSON document */
  HETCOMM_PLAN_SVG = 2   /* a picture: an SVG document */
};

/* Returns the version of the loaded library, such as "0.2.0". The string is in static storage.
 * [any-thread] */
HETCOMM_API const char* hetcomm_plan_version_string(void) HETCOMM_NOEXCEPT;

/* Returns the error text of this thread's last failed call of this library, or "" if no call has
 * failed. A successful call does not change the text. The string is borrowed until this thread's
 * next call of this library. [any-thread] */
HETCOMM_API const char* hetcomm_plan_last_error(void) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_BASE_H_ */
