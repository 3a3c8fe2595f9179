/* Declares the formats, the version and the error texts of hetcomm_plan. */
#ifndef HETCOMM_PLAN_BASE_H_
#define HETCOMM_PLAN_BASE_H_

#include <stddef.h>
#include <stdint.h>

#include <hetcomm/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Formats in which a function writes its result. */
enum {
  HETCOMM_PLAN_TEXT = 0, /* lines of UTF-8 for people */
  HETCOMM_PLAN_JSON = 1, /* a JSON document for programs */
  HETCOMM_PLAN_SVG = 2   /* a picture: an SVG document */
};

/* Returns the version of the loaded library, such as "0.2.0". The text is in static storage.
 * [any-thread] */
HETCOMM_API const char* hetcomm_plan_version_string(void) HETCOMM_NOEXCEPT;

/* Returns the error text of this thread's last failed call of this library, or "" if no call has
 * failed. A call that succeeds does not change the text. Borrowed until this thread's next call of
 * this library. [any-thread] */
HETCOMM_API const char* hetcomm_plan_last_error(void) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PLAN_BASE_H_ */
