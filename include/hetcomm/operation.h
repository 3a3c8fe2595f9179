/* Operations: the options that messages and one-sided operations share, and groups, which start
 * several operations together.                                                                  */
#ifndef HETCOMM_OPERATION_H_
#define HETCOMM_OPERATION_H_

#include <hetcomm/communicator.h>
#include <hetcomm/request.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
  HETCOMM_PRIORITY_NORMAL = 0,
  HETCOMM_PRIORITY_HIGH =
      1 /* its bulk data goes before that of normal operations to the same peer */
};

enum {
  /* An any-source receive fails as soon as one peer is lost, not when the last one is. */
  HETCOMM_OPERATION_FAIL_ON_ANY_LOSS = 1,
  /* A put tells the owner of the memory, with |notify_value|. */
  HETCOMM_OPERATION_NOTIFY = 2
};

typedef struct hetcomm_group hetcomm_group_t;

typedef struct hetcomm_operation_options {
  size_t struct_size;
  uint64_t timeout_ns; /* deadline from the submission; 0: HETCOMM_TIMEOUT, 30 minutes unless set */
  int32_t priority;    /* HETCOMM_PRIORITY_*                                                */
  uint32_t flags;      /* HETCOMM_OPERATION_*                                               */
  hetcomm_group_t* group; /* the operation starts with this group; NULL: at once               */
  uint64_t notify_value;  /* of a put with HETCOMM_OPERATION_NOTIFY                            */
} hetcomm_operation_options_t;

/* A group collects operations and starts them together: they are submitted in one step, in order,
 * and no progress runs between them. Their deadlines count from when they were collected: one that
 * is never started ends with TIMED_OUT. Its communicator cannot be destroyed before it (BUSY).
 * [serial per group] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_group_create(
    hetcomm_communicator_t* communicator, hetcomm_group_t** out_group) HETCOMM_NOEXCEPT;

/* Starts the collected operations and empties the group, which can be filled again. */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_group_start(hetcomm_group_t* group)
    HETCOMM_NOEXCEPT;

/* Frees the group. Operations collected but never started are dropped: they end with CANCELLED.
 * NULL is accepted. */
HETCOMM_API void hetcomm_group_destroy(hetcomm_group_t* group) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_OPERATION_H_ */
