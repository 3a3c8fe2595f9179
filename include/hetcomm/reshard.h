/* Resharding: moves tensors from one parallel layout to another, between any ranks of a
 * communicator: activations between pipeline stages of different degrees (HetAuto, section 5.2; H2,
 * section 5), or the weights of a model from a trainer to an inference engine (Hetu v2, section 4).
 *
 *   hetcomm_layout_from_mesh(...)    which rank holds which part of a tensor; the same on all ranks
 *   hetcomm_reshard_create(...)      plans, and prepares this rank's share
 *   hetcomm_reshard_start(...)       moves the tensors, as often as is wanted
 *
 * A layout knows ranks by their numbers in the communicator. Sizes and distances are in elements,
 * and shapes have the slowest dimension first. A rank may be in the source, in the destination, in
 * both, or in none.
 *
 * All ranks that are in a layout of a plan create it alike, and start as many executions of it. No
 * rank waits for another when it creates a plan. An execution is asynchronous and completes on each
 * rank when that rank's share is done: its destinations are there and its sources may be written
 * again. Without the progress thread (hetcomm/context.h) nothing moves between this rank's calls:
 * an execution goes on only while the rank is in a call of the library, and the ranks that need it
 * wait meanwhile. When one has waited a second for its own rank's next call, the log says so once,
 * at level info.
 *
 * Order.
 *   - Executions of one plan start in the order of their calls on every rank, whatever streams they
 *     name: one that is called later starts later. Execution n of one rank belongs to execution n
 *     of the others.
 *   - Executions of different plans have no order: ranks may start them in different orders. One
 *     that waits for a stream holds back no execution of another plan.
 *   - Executions and collective operations have no order either. Collective operations keep their
 *     own (hetcomm/collective.h).
 *   - Within one stream that is held back the stream's order stands: what is put into it later
 *     starts when the earlier one has ended. A group (hetcomm/operation.h) lifts that for its
 *     members, which start together. Executions of several plans may be in one group; one counts as
 *     called when its group is started. Two ranks that each send to the other in one held stream
 *     need that.
 *
 * Plans that differ. A plan is made of integers only and the same on all ranks and processors, so
 * that the ranks need not exchange it. A rank that starts its first execution tells the ranks with
 * which it exchanges messages the plan's tag, its number among the plans that the two ranks have
 * made with that tag, and a hash of layouts, types and options. Where the other rank has made
 * another plan in its place, both end with MISMATCH, and so do later executions. Where it has made
 * none that fits, the rank waits, since the plan may come. Reports of stalls, and the text at the
 * deadline, then say which plans the other rank has, and the status at the deadline is MISMATCH.
 *
 * Labels. An execution may carry a label (step and micro_batch in its options), which the ranks
 * compare before data moves between them. Where two labels differ, both ranks end with MISMATCH,
 * the text has both labels, and the plan ends. 0 and 0, which is also what an execution without a
 * label has, is told to nobody but compared with what others tell.
 *
 * Failures. An execution that is refused, cancelled or late before any rank has sent data of it
 * ends alone, on all ranks that have something to do with it: on this rank with its reason, on the
 * others with ABORTED, or MISMATCH where it was refused. The plan goes on with the next one; after
 * 8192 in a row that ended so it ends, too. Any other failure, by a deadline or a cancel after
 * data has moved, the loss of a rank or for want of memory, fails the execution on the ranks that
 * have something to do with that one (PEER_LOST or MISMATCH where that is the reason, else ABORTED;
 * ABORTED, too, on a rank whose own plan is not one of those that differ; the text names the rank
 * where it began, its status and its reason), and ends the plan: others that are under way end with
 * the reason, and later ones at once. Whoever goes on destroys it on all ranks and creates another
 * one. Where ranks were lost, hetcomm_reshard_rebuild() makes the plan again among those that are
 * left. */
#ifndef HETCOMM_RESHARD_H_
#define HETCOMM_RESHARD_H_

#include <hetcomm/collective.h>
#include <hetcomm/operation.h>
#include <hetcomm/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- layouts ------------------------------------------------------------------------------- */

/* The most dimensions of a tensor. */
#define HETCOMM_MAX_DIMENSIONS 8

/* Says which rank holds which boxes of a tensor, and where in its memory. Does not change. */
typedef struct hetcomm_layout hetcomm_layout_t;

/* A box of the tensor that one rank holds, empty only where the tensor has no elements. Element i
 * (one index for each dimension, counted from the box's beginning) lies
 * offset + sum(i[d] * strides[d]) elements after the beginning of the rank's buffer. */
typedef struct hetcomm_part {
  int32_t rank;
  /* Ranks with one number hold the tensor once: replicas have different numbers. */
  uint32_t copy;
  /* Which term of a sum it is; 0 where the tensor is none. Sums: see hetcomm_reshard_tensor_t. */
  uint32_t term;
  /* 0. */
  uint32_t reserved;
  uint64_t begin[HETCOMM_MAX_DIMENSIONS];
  uint64_t end[HETCOMM_MAX_DIMENSIONS]; /* the first index beyond */
  uint64_t offset;
  /* All 0: the box is alone and in C order. */
  uint64_t strides[HETCOMM_MAX_DIMENSIONS];
} hetcomm_part_t;

/* What one axis of a mesh of ranks does to a tensor, as PyTorch's placements. Axes act from the
 * first to the last. */
enum {
  /* All ranks along the axis hold the same. */
  HETCOMM_PLACEMENT_REPLICATE = 0,
  /* Rank i along the axis holds piece i of the dimension. */
  HETCOMM_PLACEMENT_SHARD = 1,
  /* The dimension is cut in twice as many pieces as ranks, and rank i holds piece i from the
   * beginning and piece i from the end: context parallelism with causal attention. */
  HETCOMM_PLACEMENT_ZIGZAG = 2,
  /* The dimension is cut in |split| pieces and each of these in as many as there are ranks; rank i
   * holds piece i of each. That is as if a later axis with |split| ranks had cut the dimension first
   * (_StridedShard of PyTorch). */
  HETCOMM_PLACEMENT_STRIDED_SHARD = 3,
  /* The tensor is the sum of what the ranks along the axis hold. */
  HETCOMM_PLACEMENT_PARTIAL = 4,
  /* The tensor is that sum divided by the number of ranks along the axis. */
  HETCOMM_PLACEMENT_AVERAGE = 5
};
typedef struct hetcomm_placement {
  int32_t kind; /* one of HETCOMM_PLACEMENT_* */
  uint32_t dimension;
  uint64_t split; /* STRIDED_SHARD: at least 1; other kinds ignore it */
  /* SHARD: elements of each rank along the axis, which may be 0; NULL: equal pieces. */
  const uint64_t* sizes;
} hetcomm_placement_t;

/* How a dimension is cut that the pieces do not divide, where no sizes are given. */
enum {
  HETCOMM_UNEVEN_REFUSE = 0,
  /* Pieces of the quotient rounded up while there are elements, then empty ones (torch.chunk). */
  HETCOMM_UNEVEN_CEIL = 1
};

typedef struct hetcomm_layout_options {
  /* The caller sets it to sizeof(hetcomm_layout_options_t). */
  size_t struct_size;
  /* Parts may reach beyond the shape, up to this one; what is beyond is neither read nor written.
   * NULL: they may not. From parts only. */
  const uint64_t* padded_shape;
  /* The tensor is the sum of so many terms; 0: 1. From parts only. */
  uint32_t terms;
  /* One of HETCOMM_UNEVEN_*. From a mesh only. */
  int32_t uneven;
  /* Each rank's piece is a view of a larger tensor, at this place and with these strides; NULL: the
   * piece is alone and in C order. From a mesh only. */
  uint64_t view_offset;
  const uint64_t* view_strides;
  /* The tensor is the sum of its terms divided by this; 0: 1. More than 1 only where there are
   * several terms. From parts only. */
  uint32_t divisor;
  /* 0. */
  uint32_t reserved;
} hetcomm_layout_options_t;

/* Parallel degrees of activations [batch, sequence, hidden], which are cut as
 * [b / d, s / (c t), h]: data, context and tensor parallel, the last with sequence parallelism. A
 * degree of 0 is 1. */
typedef struct hetcomm_degrees {
  /* The caller sets it to sizeof(hetcomm_degrees_t). */
  size_t struct_size;
  uint64_t data;
  uint64_t context;
  uint64_t tensor;
  /* The order in which the ranks are numbered, slowest first: a permutation of "dct". NULL: that. */
  const char* order;
  /* 1: context parallelism by pairs of pieces, for causal attention. */
  int32_t zigzag;
  /* 0. */
  uint32_t reserved;
} hetcomm_degrees_t;

/* Makes a layout of a tensor of |dimensions| dimensions and |shape| from boxes. A single number has 0
 * dimensions, and is treated as one dimension of one element. A tensor with a dimension of 0 needs no
 * boxes. The arrays are copied. |options| may be NULL. Boxes of one rank may lie over each other in its
 * memory: such a layout can be a source, and is refused as a destination.
 *   INVALID_ARGUMENT  The parts make no sense; the text names the first rank and box that does not
 *                     fit: a hole, an overlap, a box outside of the tensor, a rank that holds an
 *                     element twice, strides that let two elements of a box lie at one place.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_from_parts(
    size_t dimensions, const uint64_t* shape, const hetcomm_part_t* parts, size_t part_count,
    const hetcomm_layout_options_t* options, hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* Makes a layout from a mesh with |axis_count| axes of |axes|[i] ranks, which |ranks| lists with the
 * last axis fastest, and a placement for each axis. The arrays are copied. |options| may be NULL.
 *   INVALID_ARGUMENT  A rank is there twice, an axis has no ranks, a dimension does not exist or
 *                     cannot be cut; the text names the axis.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_from_mesh(
    size_t dimensions, const uint64_t* shape, size_t axis_count, const uint64_t* axes,
    const int32_t* ranks, const hetcomm_placement_t* placements,
    const hetcomm_layout_options_t* options, hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* Makes a layout of activations of |batch| samples, |sequence| tokens and |hidden| features on
 * data * context * tensor |ranks|. INVALID_ARGUMENT: |rank_count| is another number, or a degree
 * does not divide. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_from_degrees(
    uint64_t batch, uint64_t sequence, uint64_t hidden, const hetcomm_degrees_t* degrees,
    const int32_t* ranks, size_t rank_count, hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* The elements that |rank|'s buffer has at least; 0: it holds nothing. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_elements(
    const hetcomm_layout_t* layout, int32_t rank, uint64_t* out_elements) HETCOMM_NOEXCEPT;

/* Makes the layout that is left when ranks were lost and the others have new numbers. |ranks|[r] is
 * the number that rank r has from now on, or -1: it is lost. Every rank that is left holds what it
 * held, in the same places; replicas stand in for what was lost.
 *   PEER_LOST         Only lost ranks held some box; the text names the first one, and its rank.
 *   INVALID_ARGUMENT  A rank of the layout is not below |rank_count|; a number is below -1, or there
 *                     twice.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_after_loss(const hetcomm_layout_t* layout, const int32_t* ranks, size_t rank_count,
                          hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* Writes up to |capacity| of the parts that |rank| holds, or of all where |rank| is -1, to
 * |out_parts|, and their number to |*out_count|. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_parts(const hetcomm_layout_t* layout, int32_t rank, size_t capacity,
                     hetcomm_part_t* out_parts, size_t* out_count) HETCOMM_NOEXCEPT;

/* Writes the layout as a table for people: a line for each part. |capacity| bytes of |out_text| are
 * used, with a closing NUL; |*out_size| becomes the size that all of it needs. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_describe(const hetcomm_layout_t* layout, size_t capacity, char* out_text,
                        size_t* out_size) HETCOMM_NOEXCEPT;

/* Destroys the handle; plans that were made of the layout keep it. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_destroy(hetcomm_layout_t* layout)
    HETCOMM_NOEXCEPT;

/* --- plans --------------------------------------------------------------------------------- */

typedef struct hetcomm_reshard hetcomm_reshard_t;

/* How tensors are moved. */
enum {
  /* The quickest of all by the link model of the communicator, which sends at most one copy over a
   * link between clusters wherever that is possible. */
  HETCOMM_STRATEGY_AUTO = 0,
  /* A message from each rank that holds something to each that needs it (HetAuto, strategy 1). */
  HETCOMM_STRATEGY_DIRECT = 1,
  /* One rank of each side collects and hands out (HetAuto, strategy 2). */
  HETCOMM_STRATEGY_LEADER = 2,
  /* Groups of ranks gather, exchange one by one and scatter (HetAuto, strategy 3). */
  HETCOMM_STRATEGY_GATHER_P2P_SCATTER = 3,
  /* Each receiver gets a piece of its own from another sender, and the receivers gather the rest
   * among themselves (H2, section 5). */
  HETCOMM_STRATEGY_SENDRECV_ALLGATHER = 4,
  /* Each piece from the best of those that hold it, balanced over all tensors (Hetu v2, 4.2). */
  HETCOMM_STRATEGY_BSR = 5
};

/* What a number becomes that is too large for FLOAT8_E4M3FN, which has no infinity. In other types
 * it becomes infinity. */
enum {
  /* The largest number of its sign, infinities too, as in PyTorch 2.13. */
  HETCOMM_OVERFLOW_SATURATE = 0,
  /* NaN, as in collective operations. */
  HETCOMM_OVERFLOW_NAN = 1
};

/* A tensor that is to be moved. Elements are converted by the sender where the types differ:
 * between FLOAT32, FLOAT16, BFLOAT16 and FLOAT8_*, and between FLOAT64 and FLOAT32.
 *
 * A tensor with several terms becomes their sum where the destination has one term. The terms are
 * sent in the source's type and added in the order of their numbers: in FLOAT64 where one of both
 * types is that, in FLOAT32 where they are other floating-point types, and in their own type
 * otherwise. Integers wrap around, and BOOL is true where a term is. The sum is divided, if it is an
 * average, and rounded to the destination's type once. So strategies, slices and transports do not
 * change it. A sum that keeps its type overflows as in collective operations. */
typedef struct hetcomm_reshard_tensor {
  const hetcomm_layout_t* source;
  const hetcomm_layout_t* destination;
  hetcomm_datatype_t source_type;
  hetcomm_datatype_t destination_type;
} hetcomm_reshard_tensor_t;

typedef struct hetcomm_reshard_options {
  /* The caller sets it to sizeof(hetcomm_reshard_options_t). */
  size_t struct_size;
  /* One of HETCOMM_STRATEGY_*. */
  int32_t strategy;
  /* Executions that can be under way at a time; 0: 1. */
  uint32_t in_flight;
  /* Tells plans between the same ranks apart. Plans with the same tag are joined in the order in
   * which each rank created them. */
  uint64_t tag;
  /* Messages have about so many bytes: a long tensor is cut in slices, which gather, travel and
   * scatter one behind the other, and short tensors go together. 0: chosen. */
  uint64_t slice_bytes;
  /* GATHER_P2P_SCATTER: slabs of the first dimension; 0: the greatest common divisor of both sides'
   * (HetAuto, section 5.2). */
  uint64_t outer;
  /* Host memory for messages that are packed or have to wait for their place, for each direction,
   * and for sums of one slice before they are rounded; 0: 64 MiB. More is used only if a single
   * message or slice needs it. This rank alone. */
  uint64_t landing_bytes;
  /* 1: the plan of all ranks is proved (every element of the destination is written once, from the
   * right place), which takes as long as planning. It is not proved that the ranks never wait for
   * each other in a ring: they cannot, since all of them make the moves in one order. This rank
   * alone. */
  int32_t prove;
  /* One of HETCOMM_OVERFLOW_*: conversions of elements. */
  int32_t overflow;
  /* What this rank sends to each other rank shares a network interface with queues, and with other
   * plans that have a weight, as a queue of this weight does (hetcomm/queue.h); 0: it takes no part
   * in that. At most HETCOMM_QUEUE_MAX_WEIGHT. This rank alone. */
  uint32_t weight;
  /* This rank sends data of the plan at this rate at most, in bytes a second, as a queue does; 0:
   * without a limit. The lanes to other ranks have shares of it in proportion to their bytes. This
   * rank alone. */
  uint64_t max_bytes_per_second;
} hetcomm_reshard_options_t;

/* Plans to move |tensors| together, and prepares this rank's share. Layouts may be destroyed
 * afterwards. Waits for nobody. |options| may be NULL. The communicator cannot be destroyed before
 * the plan (BUSY).
 *   INVALID_ARGUMENT  No tensors; shapes differ; types cannot be converted; a strategy is none; two
 *                     boxes of a destination lie over each other in the memory of a rank (boxes that
 *                     only interleave do not).
 *   OUT_OF_RANGE      A rank of a layout is not in the communicator; in_flight is above 1024.
 *   UNSUPPORTED       The strategy does not cover the layouts; an average of BOOL; source and
 *                     destination keep several terms and divide by different numbers.
 * The text names the tensor, and the first rank and box that does not fit. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_create(
    hetcomm_communicator_t* communicator, const hetcomm_reshard_tensor_t* tensors,
    size_t tensor_count, const hetcomm_reshard_options_t* options,
    hetcomm_reshard_t** out_reshard) HETCOMM_NOEXCEPT;

/* Makes the plan of |reshard| again in |communicator|, usually one that was rebuilt after ranks were
 * lost: with the same options, for the layouts that are left (hetcomm_layout_after_loss()).
 * |ranks|[r] is the number in |communicator| of rank r of the old one, or -1; |rank_count| is the size
 * of the old one. Each rank knows its own two numbers, and an allgather tells the others'. All ranks
 * of |communicator| that the layouts have call this alike. Waits for nobody. |reshard| stays as it is,
 * and is to be destroyed as ever.
 *   PEER_LOST         Only lost ranks held some box; the text names tensor, box and rank.
 *   INVALID_ARGUMENT  As for hetcomm_layout_after_loss().
 * Other errors are those of hetcomm_reshard_create(). [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_rebuild(
    const hetcomm_reshard_t* reshard, hetcomm_communicator_t* communicator, const int32_t* ranks,
    size_t rank_count, hetcomm_reshard_t** out_reshard) HETCOMM_NOEXCEPT;

/* Starts to move the tensors from |sources| to |destinations|, which have a buffer for each tensor,
 * in host or device memory, that is not looked at where this rank holds no part. An array is NULL
 * where this rank holds no part at all. They belong to the execution until the request has
 * completed. Of |options|, which may be NULL, all but the value of a notification count. A call that
 * was rejected does not count, and nobody hears of it: it may be made again, or
 * hetcomm_reshard_refuse() tells the others.
 *
 * Sources may share memory. No element of a destination may lie where another one of any
 * destination, or an element of a source, lies: of this execution, or of one of this plan that is
 * under way, unless both are in the order of one stream. Elements count, not buffers: tensors may
 * interleave in one buffer. What a rank has before and after may stay in its place, unless it is
 * converted or summed. Buffers are compared in memory that the host reaches, and in one allocation
 * of a device; memories that were wrapped count as parts of theirs, but not buffers of OpenCL that are
 * parts of others.
 *   BUSY              |in_flight| executions are under way.
 *   INVALID_ARGUMENT  An array is missing; the options have flags; a destination
 *                     overlaps another one or a source. The text names the tensors.
 *   OUT_OF_RANGE      A buffer is shorter than the layout needs.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_start(
    hetcomm_reshard_t* reshard, const hetcomm_buffer_t* sources,
    const hetcomm_buffer_t* destinations, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Tells the other ranks that this rank refuses one execution, for callers that check arguments
 * before they call: the next one that it would start. There that execution ends with MISMATCH and
 * |reason|, of which 400 bytes are told and which may be NULL; here it counts as started. If all
 * ranks refuse the same one, nothing fails. Does not wait: without the progress thread the others
 * hear of it at this rank's next call that makes progress. Does nothing once the plan has ended.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_refuse(hetcomm_reshard_t* reshard, const char* reason) HETCOMM_NOEXCEPT;

/* The number of executions under way on this rank: collected in a group, behind a stream, or
 * started. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_pending(hetcomm_reshard_t* reshard, uint32_t* out_count) HETCOMM_NOEXCEPT;

/* Waits until no execution is under way on this rank. Their requests still have to be waited for or
 * released. |timeout_ns| 0: HETCOMM_TIMEOUT. TIMED_OUT: some still are. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_drain(hetcomm_reshard_t* reshard, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Asks to end all executions under way on this rank with CANCELLED, as hetcomm_request_cancel.
 * Those of which no rank has sent data end alone. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_cancel(hetcomm_reshard_t* reshard)
    HETCOMM_NOEXCEPT;

/* What a plan is, in numbers. */
typedef struct hetcomm_reshard_facts {
  /* The caller sets it to sizeof(hetcomm_reshard_facts_t). */
  size_t struct_size;
  /* How the first tensor is moved: one of HETCOMM_STRATEGY_* but AUTO. */
  int32_t strategy;
  /* 1: all tensors are moved so. */
  int32_t is_strategy_of_all;
  /* How long an execution takes by the communicator's link model, over all ranks: the sum of the
   * tensors' forecasts; 0: there is no model. */
  uint64_t forecast_ns;
  /* What this rank sends and receives in an execution. */
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t messages_sent;
  uint64_t messages_received;
  /* Host memory of this rank that an execution needs besides landing_bytes, between hops. */
  uint64_t scratch_bytes;
} hetcomm_reshard_facts_t;

/* Writes the facts of a plan to |*out_facts|, as many as struct_size has room for. Plans anew for
 * the forecast, where there is a link model.
 * INVALID_ARGUMENT: struct_size is 0 or not a size that this version knows. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_get_facts(
    hetcomm_reshard_t* reshard, hetcomm_reshard_facts_t* out_facts) HETCOMM_NOEXCEPT;

/* How a plan is described. */
enum {
  HETCOMM_RESHARD_TEXT = 0, /* tables for people */
  HETCOMM_RESHARD_JSON = 1, /* steps, bytes, forecast and what was considered; a list of tensors
                               gives an array */
  HETCOMM_RESHARD_SVG = 2   /* who sends what to whom; of a plan with one tensor */
};

/* Writes the plan of all ranks in |format|, as hetcomm_layout_describe() writes a layout. Plans
 * anew for that. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_describe(hetcomm_reshard_t* reshard, int32_t format, size_t capacity,
                         char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Where ranks stand in a link model. */
typedef struct hetcomm_reshard_links {
  /* The caller sets it to sizeof(hetcomm_reshard_links_t). */
  size_t struct_size;
  /* A link model as JSON, as hetcomm_communicator_link_model() writes it. */
  const char* model;
  /* The host of each rank in the model. */
  const char* const* hosts;
  /* The NIC of each rank; NULL: the first of its host. */
  const char* const* nics;
  size_t rank_count;
} hetcomm_reshard_links_t;

/* Plans without a communicator, and writes the plan as hetcomm_reshard_describe(). |links| NULL:
 * nothing is known of the links; then there is no forecast, and AUTO is BSR, or DIRECT for sums. Of
 * |options|, which may be NULL, strategy, outer, slice_bytes and prove count.
 *   INVALID_ARGUMENT  As for hetcomm_reshard_create(), or the model is none.
 *   NOT_FOUND         The model lacks a host or a NIC of a rank.
 *   UNSUPPORTED       As for hetcomm_reshard_create().
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_draft(
    const hetcomm_reshard_tensor_t* tensors, size_t tensor_count,
    const hetcomm_reshard_options_t* options, const hetcomm_reshard_links_t* links, int32_t format,
    size_t capacity, char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Destroys this rank's share. Executions of others that need it end with ABORTED. BUSY: executions
 * are under way here. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_destroy(hetcomm_reshard_t* reshard)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_RESHARD_H_ */
