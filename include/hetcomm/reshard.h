/* Moves tensors from one parallel layout to another, between any ranks of a communicator. Examples
 * are activations between pipeline stages of different degrees (HetAuto, section 5.2; H2, section
 * 5), and the weights of a model from a trainer to an inference engine (Hetu v2, section 4).
 *
 *   hetcomm_layout_from_mesh(...)    says which rank holds which part of a tensor
 *   hetcomm_reshard_create(...)      makes a reshard plan, and prepares this rank's share of it
 *   hetcomm_reshard_start(...)       executes the reshard plan: it moves the tensors
 *
 * A layout knows ranks by their numbers in the communicator. Sizes and distances are in elements,
 * and shapes have the slowest dimension first. A rank may be in the source, in the destination, in
 * both, or in neither.
 *
 * All ranks that are in a layout of a reshard plan create the plan with the same arguments (some
 * options may differ), and start the same number of executions of it. No rank waits for another
 * when it creates a plan. An execution is asynchronous. It completes on each rank when that rank's
 * share is done: its destinations are there, and its sources may be written again. Without the
 * progress thread (hetcomm/context.h) nothing moves between this rank's calls. An execution then
 * goes on only while the rank is in a call of the library, and the ranks that need it wait until
 * the next call. When one of them has waited for a second, the log says so once, at level info.
 *
 * Order.
 *   - Executions of one reshard plan start in the order of their calls on every rank, whatever
 *     streams they name: one that is called later starts later. Execution n of one rank belongs to
 *     execution n of the others.
 *   - Executions of different reshard plans have no order: ranks may start them in different
 *     orders. One that waits for a stream does not hold back an execution of another reshard plan.
 *   - Executions and collective operations have no order between them. Collective operations keep
 *     their own (hetcomm/collective.h).
 *   - Within one stream that is held back the stream's order holds: an operation that is put into
 *     it later starts when the earlier one has ended. A group (hetcomm/operation.h) lifts that for
 *     its members, which start together. Executions of several reshard plans may be in one group.
 *     An execution counts as called when its group is started. Two ranks that send to each other in
 *     one held stream need a group.
 *
 * Differences. A reshard plan is made of integers only, and the same on all ranks and processors,
 * so the ranks do not exchange it. With its first execution of a plan, a rank tells each rank with
 * which it exchanges messages the tag, a number, and a hash of layouts, types and options. The
 * number counts the reshard plans that the two ranks have made with that tag. If the other rank has
 * made a different plan in its place, both plans end with MISMATCH, and so do later executions. If
 * the other rank has no plan that fits, the rank waits, since the plan may still come. Reports of
 * stalls, and the text at the deadline, then list the plans that the other rank has, and the status
 * at the deadline is MISMATCH.
 *
 * Labels. An execution may carry a label (step and micro_batch in its options), which the ranks
 * compare before data moves between them. If two labels differ, both ranks end with MISMATCH, the
 * text has both labels, and the reshard plan ends. An execution without a label has the label 0, 0.
 * A rank does not send that label, but compares it with the labels that it receives.
 *
 * Failures. If an execution is refused, cancelled or late before any rank has sent data of it, only
 * this execution ends, on all ranks that take part in it. It ends on this rank with its reason, and
 * on the others with ABORTED, or with MISMATCH if it was refused. The reshard plan goes on with the
 * next execution. After 8192 such executions in a row the plan ends, too.
 *
 * Any other failure also ends the reshard plan: a deadline or a cancel after data has moved, the
 * loss of a rank, or a lack of memory. The execution then fails on the ranks that take part in it,
 * with PEER_LOST or MISMATCH if that is the reason, and otherwise with ABORTED. If the plans of two
 * ranks differ, the other ranks get ABORTED. The text names the rank where the failure began, its
 * status and its reason. Other pending executions end with that reason, and later ones end at once.
 * To go on, all ranks destroy the plan and create another one. After a loss of ranks,
 * hetcomm_reshard_rebuild() makes the plan again for those that are left. */
#ifndef HETCOMM_RESHARD_H_
#define HETCOMM_RESHARD_H_

#include <hetcomm/datatype.h>
#include <hetcomm/operation.h>
#include <hetcomm/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- layouts ------------------------------------------------------------------------------- */

/* Largest number of dimensions of a tensor. */
#define HETCOMM_MAX_DIMENSIONS 8

/* A layout says which rank holds which boxes of a tensor, and where in its memory. It never
 * changes. */
typedef struct hetcomm_layout hetcomm_layout_t;

/* A box of the tensor that one rank holds. It is empty only if the tensor has no elements. Element
 * i (one index for each dimension, counted from the box's beginning) lies offset + sum(i[d] *
 * strides[d]) elements after the beginning of the rank's buffer. */
typedef struct hetcomm_part {
  int32_t rank;
  /* The number of the replica. Replica 0 holds the whole tensor; others may hold parts of it. No
   * replica holds an element twice. */
  uint32_t copy;
  /* The number of the term, if the tensor is a sum (hetcomm_reshard_tensor_t); otherwise 0. */
  uint32_t term;
  /* Has to be 0. */
  uint32_t reserved;
  uint64_t begin[HETCOMM_MAX_DIMENSIONS];
  uint64_t end[HETCOMM_MAX_DIMENSIONS]; /* one past the last index */
  uint64_t offset;
  /* All 0: the box is dense and in C order. */
  uint64_t strides[HETCOMM_MAX_DIMENSIONS];
} hetcomm_part_t;

/* The way in which one axis of a mesh of ranks cuts a tensor, as PyTorch's placements do. The axes
 * are applied from the first to the last. */
enum {
  /* All ranks along the axis hold the same elements. */
  HETCOMM_PLACEMENT_REPLICATE = 0,
  /* Rank i along the axis holds piece i of the dimension. */
  HETCOMM_PLACEMENT_SHARD = 1,
  /* The dimension is cut into twice as many pieces as ranks. Rank i holds piece i from the
   * beginning and piece i from the end, as for context parallelism with causal attention. */
  HETCOMM_PLACEMENT_ZIGZAG = 2,
  /* The dimension is cut into |split| pieces, and each of these into as many as there are ranks;
   * rank i holds piece i of each. The result is as if a later axis with |split| ranks had cut the
   * dimension first (_StridedShard of PyTorch). */
  HETCOMM_PLACEMENT_STRIDED_SHARD = 3,
  /* The tensor is the sum of the tensors that the ranks along the axis hold. */
  HETCOMM_PLACEMENT_PARTIAL = 4,
  /* The tensor is the average of the tensors that the ranks along the axis hold. */
  HETCOMM_PLACEMENT_AVERAGE = 5
};
typedef struct hetcomm_placement {
  int32_t kind; /* one of HETCOMM_PLACEMENT_* */
  uint32_t dimension;
  uint64_t split; /* STRIDED_SHARD: at least 1; other kinds ignore it */
  /* SHARD: the number of elements of each rank along the axis, which may be 0. NULL: equal
   * pieces. */
  const uint64_t* sizes;
} hetcomm_placement_t;

/* The way in which a dimension is cut if its length is not a multiple of the number of pieces, and
 * no sizes are given. */
enum {
  HETCOMM_UNEVEN_REFUSE = 0,
  /* Each piece has the quotient rounded up, as long as elements are left. The last pieces may be
   * shorter or empty (torch.chunk). */
  HETCOMM_UNEVEN_CEIL = 1
};

typedef struct hetcomm_layout_options {
  /* The caller sets it to sizeof(hetcomm_layout_options_t). */
  size_t struct_size;
  /* Only for hetcomm_layout_from_parts: parts may reach beyond the shape, up to this one. Elements
   * beyond the shape are neither read nor written. NULL: parts may not. */
  const uint64_t* padded_shape;
  /* Only for hetcomm_layout_from_parts: the number of terms whose sum the tensor is. 0: 1. */
  uint32_t terms;
  /* Only for hetcomm_layout_from_mesh: one of HETCOMM_UNEVEN_*. */
  int32_t uneven;
  /* Only for hetcomm_layout_from_mesh: each rank's piece is a view of a larger tensor, at this
   * offset and with these strides. NULL: the piece is dense and in C order. */
  uint64_t view_offset;
  const uint64_t* view_strides;
  /* Only for hetcomm_layout_from_parts: the sum of the terms is divided by this number. 0: 1. It
   * may be more than 1 only where there are several terms. */
  uint32_t divisor;
  /* Has to be 0. */
  uint32_t reserved;
} hetcomm_layout_options_t;

/* Parallel degrees of activations [batch, sequence, hidden]: data, context, and tensor parallelism
 * with sequence parallelism. Each rank holds a piece of [b / d, s / (c t), h]. A degree of 0 counts
 * as 1. */
typedef struct hetcomm_degrees {
  /* The caller sets it to sizeof(hetcomm_degrees_t). */
  size_t struct_size;
  uint64_t data;
  uint64_t context;
  uint64_t tensor;
  /* The order in which the ranks are numbered, slowest first: a permutation of "dct". NULL: "dct".
   */
  const char* order;
  /* 1: context parallelism by pairs of pieces, for causal attention (HETCOMM_PLACEMENT_ZIGZAG). */
  int32_t zigzag;
  /* Has to be 0. */
  uint32_t reserved;
} hetcomm_degrees_t;

/* Makes a layout of a tensor of |dimensions| dimensions and |shape| from boxes. A single number has
 * 0 dimensions, and is treated as one dimension of one element. A tensor with a dimension of 0
 * needs no boxes. The arrays are copied. |options| may be NULL. Boxes of one rank may overlap in
 * its memory: such a layout can be a source, but not a destination.
 *   INVALID_ARGUMENT  The parts are inconsistent. The text names the first rank and box that does
 *                     not fit: a hole, an overlap, a box outside of the tensor, a rank that holds
 *                     an element twice, or strides that put two elements of a box at one place.
 *   OUT_OF_RANGE      There are more than 2^22 parts.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_from_parts(
    size_t dimensions, const uint64_t* shape, const hetcomm_part_t* parts, size_t part_count,
    const hetcomm_layout_options_t* options, hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* Makes a layout from a mesh of ranks, with one placement for each axis. The mesh has |axis_count|
 * axes of |axes|[i] ranks. |ranks| lists its ranks, with the last axis fastest. The arrays are
 * copied. |options| may be NULL.
 *   INVALID_ARGUMENT  A rank is there twice, an axis has no ranks, or a dimension does not exist or
 *                     cannot be cut; the text names the axis.
 *   OUT_OF_RANGE      There are more than 16 axes.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_from_mesh(
    size_t dimensions, const uint64_t* shape, size_t axis_count, const uint64_t* axes,
    const int32_t* ranks, const hetcomm_placement_t* placements,
    const hetcomm_layout_options_t* options, hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* Makes a layout of activations of |batch| samples, |sequence| tokens and |hidden| features. There
 * are data times context times tensor |ranks|. INVALID_ARGUMENT: |rank_count| is not that product,
 * or a degree does not divide its dimension. OUT_OF_RANGE: there are more than 2^22 ranks.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_from_degrees(
    uint64_t batch, uint64_t sequence, uint64_t hidden, const hetcomm_degrees_t* degrees,
    const int32_t* ranks, size_t rank_count, hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* Gives the number of elements that |rank|'s buffer must have. 0: |rank| holds nothing.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_elements(
    const hetcomm_layout_t* layout, int32_t rank, uint64_t* out_elements) HETCOMM_NOEXCEPT;

/* Makes the layout that is left when ranks were lost and the others have new numbers. |ranks|[r] is
 * the new number of rank r, or -1 if it is lost. Every rank that is left holds what it held, in the
 * same places. Replicas replace what was lost.
 *   PEER_LOST         Only lost ranks held some box; the text names the first one, and its rank.
 *   INVALID_ARGUMENT  A rank of the layout is not below |rank_count|, or a new number is below -1
 *                     or there twice.
 *   OUT_OF_RANGE      There are more than 2^22 ranks.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_after_loss(const hetcomm_layout_t* layout, const int32_t* ranks, size_t rank_count,
                          hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

typedef struct hetcomm_layout_facts_t {
  /* The caller sets it to sizeof(hetcomm_layout_facts_t). */
  size_t struct_size;
  uint64_t dimensions;
  uint64_t shape[HETCOMM_MAX_DIMENSIONS]; /* without padding; 0 beyond |dimensions| */
  uint32_t terms;                         /* number of terms whose sum the tensor is, at least 1 */
  uint32_t divisor;                       /* divisor of the sum of the terms, at least 1 */
} hetcomm_layout_facts_t;

/* Describes the tensor of |layout| in |*out_facts|, as far as struct_size has room.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_facts(
    const hetcomm_layout_t* layout, hetcomm_layout_facts_t* out_facts) HETCOMM_NOEXCEPT;

/* Writes up to |capacity| of the parts that |rank| holds, or of all parts if |rank| is -1, to
 * |out_parts|, and their total number to |*out_count|. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_parts(const hetcomm_layout_t* layout, int32_t rank, size_t capacity,
                     hetcomm_part_t* out_parts, size_t* out_count) HETCOMM_NOEXCEPT;

/* Writes the layout as a table for people, with one line for each part. Writes at most |capacity|
 * bytes with the closing NUL to |out_text|, and the size that the whole text needs to |*out_size|.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_describe(const hetcomm_layout_t* layout, size_t capacity, char* out_text,
                        size_t* out_size) HETCOMM_NOEXCEPT;

/* Writes the layout as a JSON document, for libhetcomm_plan and for programs (reshard/README.md).
 * |capacity|, |out_text| and |*out_size| are as for hetcomm_layout_describe(). [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_json(const hetcomm_layout_t* layout, size_t capacity, char* out_text,
                    size_t* out_size) HETCOMM_NOEXCEPT;

/* Destroys the handle. Reshard plans that were made from the layout keep it. NULL is accepted.
 * [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_destroy(hetcomm_layout_t* layout)
    HETCOMM_NOEXCEPT;

/* --- reshard plans ------------------------------------------------------------------------- */

/* A reshard plan: what this rank does to move a list of tensors from one layout to another. */
typedef struct hetcomm_reshard hetcomm_reshard_t;

/* Strategies for moving a tensor. */
enum {
  /* The strategy that is quickest by the link model of the communicator. It sends at most one copy
   * over a link between clusters wherever that is possible. */
  HETCOMM_STRATEGY_AUTO = 0,
  /* Each rank that holds elements sends one message to each rank that needs them (HetAuto, strategy
   * 1). */
  HETCOMM_STRATEGY_DIRECT = 1,
  /* One rank of the source collects the tensor, and one rank of the destination distributes it
   * (HetAuto, strategy 2). */
  HETCOMM_STRATEGY_LEADER = 2,
  /* Groups of source ranks gather. One rank of each group sends to one rank of the destination,
   * which scatters the data in its own group (HetAuto, strategy 3). */
  HETCOMM_STRATEGY_GATHER_P2P_SCATTER = 3,
  /* Receivers that need the same data each get a different piece of it, and gather the rest among
   * themselves (H2, section 5). */
  HETCOMM_STRATEGY_SENDRECV_ALLGATHER = 4,
  /* Each piece comes from the best of the ranks that hold it, balanced over all tensors (Hetu v2,
   * 4.2). */
  HETCOMM_STRATEGY_BSR = 5
};

/* Results of converting a number that is too large for FLOAT8_E4M3FN, which has no infinity. In
 * other types such a number becomes infinity. */
enum {
  /* The largest number with the same sign. Infinities become that number, too, as in PyTorch
   * 2.13. */
  HETCOMM_OVERFLOW_SATURATE = 0,
  /* NaN, as in collective operations. */
  HETCOMM_OVERFLOW_NAN = 1
};

/* A tensor that is to be moved. If the types differ, the sender converts the elements: between
 * FLOAT32, FLOAT16, BFLOAT16 and FLOAT8_*, and between FLOAT64 and FLOAT32.
 *
 * A tensor with several terms becomes their sum if the destination has one term. The terms are sent
 * in the source's type and added in the order of their numbers. They are added in FLOAT64 if the
 * source or destination type is FLOAT64, in FLOAT32 for other floating-point types, and otherwise
 * in their own type. Integers wrap around, and BOOL is true if any term is. If the tensor is an
 * average, the sum is divided. It is rounded to the destination's type once, so strategies, slices
 * and transports do not change the result. A sum that keeps its type overflows as in collective
 * operations. */
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
  /* Largest number of executions that are under way at a time. 0: 1. */
  uint32_t in_flight;
  /* Distinguishes reshard plans between the same ranks. Plans with the same tag are paired in the
   * order in which each rank created them. */
  uint64_t tag;
  /* Approximate size of messages in bytes. A long tensor is cut into slices, which are gathered,
   * sent and scattered one behind the other: up to 64 of any size, or up to 65,536 of at least 64
   * KiB of the whole tensor. It is cut along the outermost dimension that has enough elements, so
   * that rows stay whole. Short tensors share messages. 0: the library chooses. */
  uint64_t slice_bytes;
  /* GATHER_P2P_SCATTER: the number of slabs into which the first dimension is cut. 0: the greatest
   * common divisor of the numbers of pieces into which the two layouts cut it (HetAuto, section
   * 5.2). */
  uint64_t outer;
  /* Limit of the host memory, in bytes for each direction, for messages that are packed or wait to
   * be unpacked. It also limits the memory for the sums of one slice before they are rounded. 0: 64
   * MiB. More is used only if a single message or slice needs it. Ranks may differ in this
   * option. */
  uint64_t landing_bytes;
  /* 1: this rank proves the reshard plan of all ranks: every element of the destination is written
   * once, from the right place. The proof takes as long as making the plan. It does not cover
   * deadlocks, in which ranks wait for each other in a ring. They cannot happen, since all ranks
   * make the moves in one order. Ranks may differ in this option. */
  int32_t prove;
  /* One of HETCOMM_OVERFLOW_*, for conversions of elements. */
  int32_t overflow;
  /* The weight with which this rank's sends share a network interface with queues and with other
   * reshard plans that have a weight (hetcomm/queue.h). 0: the sends take no part in that sharing,
   * or have a weight of 1 if max_bytes_per_second is not 0. At most HETCOMM_QUEUE_MAX_WEIGHT. Ranks
   * may differ in this option. */
  uint32_t weight;
  /* The highest rate at which this rank sends, in bytes per second. The ranks that it sends to get
   * shares of the rate in proportion to their bytes. 0: there is no limit. Ranks may differ in this
   * option. */
  uint64_t max_bytes_per_second;
} hetcomm_reshard_options_t;

/* Makes a reshard plan that moves |tensors| together, and prepares this rank's share. The call does
 * not wait for other ranks. Layouts may be destroyed afterwards. |options| may be NULL. The
 * communicator cannot be destroyed before the reshard plan (BUSY).
 *
 * All ranks describe the same boxes. The offsets and gaps in the memory of other ranks do not
 * matter, but the order of the strides does: if all boxes of both sides hold the dimensions in
 * another order than C's, messages have that order, too, and need no transposition. Executions on
 * ranks that do not agree end with MISMATCH.
 *   INVALID_ARGUMENT  There are no tensors, shapes differ, types cannot be converted, an option has
 *                     no valid value, or two boxes of a destination overlap in the memory of a rank
 *                     (boxes that only interleave do not).
 *   OUT_OF_RANGE      A rank of a layout is not in the communicator, in_flight is above 1024, or
 *                     the weight is above HETCOMM_QUEUE_MAX_WEIGHT.
 *   UNSUPPORTED       The strategy does not cover the layouts, BOOL would be averaged, or source
 *                     and destination keep several terms and divide by different numbers.
 * The text names the tensor, and the first rank and box that does not fit. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_create(
    hetcomm_communicator_t* communicator, const hetcomm_reshard_tensor_t* tensors,
    size_t tensor_count, const hetcomm_reshard_options_t* options,
    hetcomm_reshard_t** out_reshard) HETCOMM_NOEXCEPT;

/* Makes |reshard| again in |communicator|, which usually was rebuilt after ranks were lost. The new
 * reshard plan has the same options, and the layouts that are left (hetcomm_layout_after_loss()).
 * |ranks|[r] is the number in |communicator| of rank r of the old communicator, or -1. |rank_count|
 * is the size of the old one. Each rank knows its own two numbers, and can learn those of the
 * others by an allgather. All ranks of |communicator| that are in the layouts call this alike. The
 * call does not wait for other ranks. |reshard| stays as it is: the caller still destroys it.
 *   PEER_LOST         Only lost ranks held some box; the text names tensor, box and rank.
 *   INVALID_ARGUMENT  As for hetcomm_layout_after_loss().
 * Other errors are those of hetcomm_reshard_create(). [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_rebuild(
    const hetcomm_reshard_t* reshard, hetcomm_communicator_t* communicator, const int32_t* ranks,
    size_t rank_count, hetcomm_reshard_t** out_reshard) HETCOMM_NOEXCEPT;

/* Starts to move the tensors from |sources| to |destinations|, which have a buffer for each tensor,
 * in host or device memory. If this rank holds no part of a tensor, the tensor's buffer is ignored.
 * If it holds no part of any tensor on one side, that array may be NULL. The buffers belong to the
 * execution until the request has completed. |options| may be NULL; the value of a notification is
 * ignored. A call that was rejected does not count, and no other rank is told: the caller may make
 * it again, or tell the others by hetcomm_reshard_refuse().
 *
 * Sources may share memory. No element of a destination may lie where another element of a
 * destination, or an element of a source, lies. That holds within this execution, and between it
 * and other executions of |reshard| that are under way, unless both are in the order of one stream.
 * Elements count, not buffers: tensors may interleave in one buffer. Within one execution there is
 * one exception: an element that a rank has before and after may stay in its place, unless it is
 * converted or summed.
 *
 * The library compares buffers in memory that the host can access, and buffers in one allocation of
 * a device. A wrapped memory counts as a part of its allocation. An OpenCL buffer that is a part of
 * another one is not compared with that one.
 *   BUSY              |in_flight| executions are under way.
 *   INVALID_ARGUMENT  An array is missing, the options have flags, or a destination overlaps
 *                     another one or a source. The text names the tensors.
 *   OUT_OF_RANGE      A buffer is shorter than the layout needs.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_start(
    hetcomm_reshard_t* reshard, const hetcomm_buffer_t* sources,
    const hetcomm_buffer_t* destinations, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Tells the other ranks that this rank refuses the next execution that it would start. It is for
 * callers that check arguments before they call. On the other ranks that execution ends with
 * MISMATCH and |reason|. |reason| may be NULL; at most 400 bytes of it are sent. On this rank the
 * execution counts as started. If all ranks refuse the same execution, nothing fails. The call does
 * not wait. Without the progress thread the others hear of the refusal at this rank's next call
 * that makes progress. The call does nothing once the reshard plan has ended. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_refuse(hetcomm_reshard_t* reshard, const char* reason) HETCOMM_NOEXCEPT;

/* Gives the number of executions under way on this rank: those that are in a group, that wait for a
 * stream, or that have started. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_pending(hetcomm_reshard_t* reshard, uint32_t* out_count) HETCOMM_NOEXCEPT;

/* Waits until no execution is under way on this rank. The caller still has to wait for their
 * requests or destroy them. |timeout_ns| 0: HETCOMM_TIMEOUT. TIMED_OUT: some are still under way.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_drain(hetcomm_reshard_t* reshard, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Asks to end all executions under way on this rank with CANCELLED, as hetcomm_request_cancel does.
 * If no rank has sent data of an execution, its end does not end the reshard plan. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_cancel(hetcomm_reshard_t* reshard)
    HETCOMM_NOEXCEPT;

/* Figures of a reshard plan. */
typedef struct hetcomm_reshard_facts_t {
  /* The caller sets it to sizeof(hetcomm_reshard_facts_t). */
  size_t struct_size;
  /* Strategy by which the first tensor is moved: one of HETCOMM_STRATEGY_* but AUTO. */
  int32_t strategy;
  /* 1: all tensors are moved by |strategy|. */
  int32_t is_strategy_of_all;
  /* Forecast of an execution's duration over all ranks, by the communicator's link model, whose
   * links the tensors share. 0: there is no model. */
  uint64_t forecast_ns;
  /* Bytes and messages that this rank sends and receives in an execution. */
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t messages_sent;
  uint64_t messages_received;
  /* Host memory of this rank, in bytes, that an execution needs between hops, in addition to
   * landing_bytes. */
  uint64_t scratch_bytes;
} hetcomm_reshard_facts_t;

/* Writes the facts of |reshard| to |*out_facts|, as many as struct_size has room for. If there is a
 * link model, the call computes the forecast anew. INVALID_ARGUMENT: struct_size is 0 or not a size
 * that this version knows. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_facts(
    hetcomm_reshard_t* reshard, hetcomm_reshard_facts_t* out_facts) HETCOMM_NOEXCEPT;

/* Formats of a description. */
enum {
  HETCOMM_RESHARD_TEXT = 0, /* tables for people */
  HETCOMM_RESHARD_JSON = 1, /* steps, bytes, forecast and the strategies that were considered; an
                               array where there are several tensors */
  /* A picture of the ranks and the data that each sends to others, for one tensor only. Version 1.0
   * removes this format: libhetcomm_plan draws the picture from the JSON. */
  HETCOMM_RESHARD_SVG = 2
};

/* Writes the reshard plan of all ranks in |format|. |capacity|, |out_text| and |*out_size| are as
 * for hetcomm_layout_describe(). The call makes the plan anew for all ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_describe(hetcomm_reshard_t* reshard, int32_t format, size_t capacity,
                         char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Destroys this rank's share of the reshard plan. Executions of other ranks that need it end with
 * ABORTED. BUSY: executions are under way on this rank. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_destroy(hetcomm_reshard_t* reshard)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_RESHARD_H_ */
