/* Names that functions had before. A program that uses them includes this header after
 * <hetcomm/hetcomm.h>; it is not part of that one. The library also exports the old names, so
 * that a program that was linked with them still runs. Both go with version 1.0. */
#ifndef HETCOMM_COMPAT_H_
#define HETCOMM_COMPAT_H_

#include <hetcomm/hetcomm.h>

/* Before 0.2: every handle now ends with *_destroy, and no query has "get" in its name. */
#define hetcomm_device_get_info hetcomm_device_info
#define hetcomm_memory_free hetcomm_memory_destroy
#define hetcomm_remote_memory_get_info hetcomm_remote_memory_info
#define hetcomm_remote_memory_release hetcomm_remote_memory_destroy
#define hetcomm_request_release hetcomm_request_destroy
#define hetcomm_reshard_get_facts hetcomm_reshard_facts
#define hetcomm_stream_release hetcomm_stream_destroy

#endif /* HETCOMM_COMPAT_H_ */
