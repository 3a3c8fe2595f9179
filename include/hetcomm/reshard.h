/* Declares resharding, which moves tensors from one parallel layout to another, between any ranks
 * of a communicator. Examples are activations between pipeline stages with different parallel
 * degrees (HetAuto, section 5.2; H2, section 5), and the weights of a model from a trainer to an
 * inference engine (Hetu v2, section 4).
 *
 *   hetcomm_layout_from_mesh(...)    describes the part of a tensor that each rank holds
 *   hetcomm_reshard_create(...)      makes a reshard plan, and prepares this rank's share of it
 *   hetcomm_reshard_start(...)       executes the reshard plan, which moves the tensors
 *
 * Layouts identify ranks by their numbers in the communicator. Sizes and distances are in elements,
 * and shapes list the slowest dimension first. A rank may be in the source, in the destination, in
 * both, or in neither.
 *
 * All ranks that are in a layout of a reshard plan create the plan with the same arguments (some
 * options may differ), and start the same number of executions of it. No rank waits for another
 * when it creates a plan. Executions are asynchronous. An execution completes on each rank when
 * that rank's share is done: its destinations have been written, and its sources can be modified
 * again. Without the progress thread (hetcomm/context.h) no data moves between this rank's calls.
 * An execution then proceeds only while the rank is in a call of the library, and the ranks that
 * depend on it wait until its next call. If an execution has waited for a second or more for this
 * rank's next call, this rank logs it once, at level info.
 *
 * Order.
 *   - On every rank, executions of one reshard plan start in the order of their calls, regardless
 *     of the streams that they name. Execution n on one rank is matched with execution n on the
 *     others.
 *   - Executions of different reshard plans are not ordered: ranks may start them in different
 *     orders. An execution that waits for a stream does not delay executions of other reshard
 *     plans.
 *   - Executions and collective operations are not ordered with each other. For the order of
 *     collective operations see hetcomm/collective.h.
 *   - Operations in a stream that is held (hetcomm/stream.h) run in the stream's order: a later
 *     operation starts when the earlier one has ended. The operations of a group
 *     (hetcomm/operation.h) are an exception, since they start together. Executions of different
 *     reshard plans can be in one group. An execution in a group counts as called when the group is
 *     started. If two ranks send to each other in one held stream, the operations must be in a
 *     group.
 *
 * Differences. The computation of a reshard plan uses only integers, and gives the same result on
 * all ranks and processors, so the ranks do not exchange plans. With the first execution of a plan,
 * each rank sends its peers in the plan the tag, a number, and a hash of layouts, types and
 * options. The number counts the reshard plans that the two ranks have made with that tag. If the
 * peer has made a different plan with the same tag and number, both plans end with MISMATCH, and so
 * do later executions. If the peer has no plan with this tag and number, the rank waits, because
 * the peer may still create it. Reports of stalls, and the text at the deadline, then list the
 * plans that the peer has, and the status at the deadline is MISMATCH.
 *
 * Labels. An execution can have a label (step and micro_batch in its options), which the ranks
 * compare before data moves between them. If two labels differ, the execution ends with MISMATCH on
 * both ranks, the text has both labels, and the reshard plan ends. An execution without a label has
 * the label 0, 0. A rank does not send this label, but compares it with the labels that it
 * receives.
 *
 * Failures. If an execution is refused, is cancelled or reaches its deadline before any rank has
 * sent data of it, only this execution ends, on all ranks that participate in it. It ends on this
 * rank with the status of the failure, and on the others with ABORTED, or with MISMATCH if it was
 * refused. The reshard plan continues with the next execution. After 8192 such executions in a row
 * the plan ends too.
 *
 * Any other failure also ends the reshard plan: a deadline or a cancel after data has moved, the
 * loss of a rank, or a lack of memory. The execution then fails on the ranks that participate in
 * it, with PEER_LOST or MISMATCH if that is the reason, and otherwise with ABORTED. If the plans of
 * two ranks differ, all other ranks get ABORTED. The text names the rank where the failure started,
 * its status and its reason. Other pending executions end with the same reason, and later ones end
 * immediately. To continue, all ranks destroy the plan and create a new one. After a loss of ranks,
 * hetcomm_reshard_rebuild() makes the plan again for the surviving ranks. */
#ifndef HETCOMM_RESHARD_H_
#define HETCOMM_RESHARD_H_

#include <hetcomm/datatype.h>
#include <hetcomm/operation.h>
#include <hetcomm/queue.h>

#ifdef __cplusplus
extern "C" {
#endif

/* --- layouts ------------------------------------------------------------------------------- */

/* Maximum number of dimensions of a tensor. */
#define HETCOMM_MAX_DIMENSIONS 8

/* A layout says which boxes of a tensor each rank holds, and where they are in the rank's buffer. A
 * layout is immutable. */
typedef struct hetcomm_layout hetcomm_layout_t;

/* A box of the tensor that one rank holds. It is empty only if the tensor has no elements. The
 * element with the indices i[d], counted from the box's beginning in each dimension, is located
 * offset + sum(i[d] * strides[d]) elements after the beginning of the rank's buffer. */
typedef struct hetcomm_part {
  int32_t rank;
  /* The number of the replica. Replica 0 holds the whole tensor; other replicas may hold parts of
   * it. No replica holds an element twice. */
  uint32_t copy;
  /* The number of the term if the tensor is a sum (hetcomm_reshard_tensor_t), otherwise 0. */
  uint32_t term;
  /* Must be 0. */
  uint32_t reserved;
  uint64_t begin[HETCOMM_MAX_DIMENSIONS];
  uint64_t end[HETCOMM_MAX_DIMENSIONS]; /* one past the last index */
  uint64_t offset;
  /* Stride of each dimension. All 0: the box is dense and in C order. */
  uint64_t strides[HETCOMM_MAX_DIMENSIONS];
} hetcomm_part_t;

/* Kinds of placement, which say how one axis of a mesh of ranks divides a tensor, like PyTorch's
 * placements. The axes are applied from the first to the last. */
enum {
  /* All ranks along the axis hold the same elements. */
  HETCOMM_PLACEMENT_REPLICATE = 0,
  /* The dimension is cut into as many pieces as there are ranks along the axis. Rank i holds piece
   * i. */
  HETCOMM_PLACEMENT_SHARD = 1,
  /* The dimension is cut into twice as many pieces as there are ranks. Rank i holds piece i counted
   * from the beginning and piece i counted from the end, as in context parallelism with causal
   * attention. */
  HETCOMM_PLACEMENT_ZIGZAG = 2,
  /* The dimension is cut into |split| pieces, and each of these into as many sub-pieces as there
   * are ranks. Rank i holds sub-piece i of each piece. The result is as if a later axis with
   * |split| ranks had cut the dimension first (_StridedShard of PyTorch). */
  HETCOMM_PLACEMENT_STRIDED_SHARD = 3,
  /* The tensor is the sum of the tensors that the ranks along the axis hold. */
  HETCOMM_PLACEMENT_PARTIAL = 4,
  /* The tensor is the average of the tensors that the ranks along the axis hold. */
  HETCOMM_PLACEMENT_AVERAGE = 5
};
typedef struct hetcomm_placement {
  int32_t kind; /* one of HETCOMM_PLACEMENT_* */
  uint32_t dimension;
  uint64_t split; /* STRIDED_SHARD: number of pieces, at least 1; other kinds ignore it */
  /* SHARD: the number of elements that each rank along the axis holds, which may be 0. NULL: equal
   * pieces. */
  const uint64_t* sizes;
} hetcomm_placement_t;

/* The handling of a dimension whose length is not a multiple of the number of pieces, if no sizes
 * are specified. */
enum {
  HETCOMM_UNEVEN_REFUSE = 0,
  /* The length of a piece is the quotient, rounded up. The last pieces may be shorter or empty
   * (torch.chunk). */
  HETCOMM_UNEVEN_CEIL = 1
};

typedef struct hetcomm_layout_options {
  /* The caller sets it to sizeof(hetcomm_layout_options_t). */
  size_t struct_size;
  /* Only for hetcomm_layout_from_parts: parts may extend past the shape, up to this padded shape.
   * Elements outside the shape are neither read nor written. NULL: parts must be within the
   * shape. */
  const uint64_t* padded_shape;
  /* Only for hetcomm_layout_from_parts: the tensor is the sum of this number of terms. 0 means
   * 1. */
  uint32_t terms;
  /* Only for hetcomm_layout_from_mesh: one of HETCOMM_UNEVEN_*. */
  int32_t uneven;
  /* Only for hetcomm_layout_from_mesh: each rank's piece is a view of a larger tensor, at this
   * offset and with these strides. NULL: the piece is dense and in C order. */
  uint64_t view_offset;
  const uint64_t* view_strides;
  /* Only for hetcomm_layout_from_parts: the sum of the terms is divided by this number. 0 means 1.
   * It can be more than 1 only if there are multiple terms. */
  uint32_t divisor;
  /* Must be 0. */
  uint32_t reserved;
} hetcomm_layout_options_t;

/* Parallel degrees of activations of shape [batch, sequence, hidden]: the degrees d of data
 * parallelism, c of context parallelism, and t of tensor parallelism with sequence parallelism.
 * Each rank holds a piece of shape [batch / d, sequence / (c t), hidden]. A degree of 0 means 1. */
typedef struct hetcomm_degrees {
  /* The caller sets it to sizeof(hetcomm_degrees_t). */
  size_t struct_size;
  uint64_t data;
  uint64_t context;
  uint64_t tensor;
  /* The order in which the ranks are numbered, slowest first: a permutation of "dct". NULL: "dct".
   */
  const char* order;
  /* 1: context parallelism gives each rank a pair of pieces, for causal attention
   * (HETCOMM_PLACEMENT_ZIGZAG). */
  int32_t zigzag;
  /* Must be 0. */
  uint32_t reserved;
} hetcomm_degrees_t;

/* Makes a layout from boxes, for a tensor of |shape|, which has |dimensions| entries. A scalar has
 * 0 dimensions, and is treated as one dimension of one element. A tensor with a dimension of length
 * 0 needs no boxes. The arrays are copied. |options| may be NULL. Boxes of one rank may overlap in
 * its memory: such a layout can be a source, but not a destination.
 *   INVALID_ARGUMENT  There are more than HETCOMM_MAX_DIMENSIONS dimensions. Or the parts are
 *                     inconsistent: there is a gap, an overlap, a box outside the tensor, a rank
 *                     that holds an element twice, or a box whose strides map two elements to the
 *                     same location. The text names the first faulty rank and box.
 *   OUT_OF_RANGE      There are more than 2^22 parts.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_from_parts(
    size_t dimensions, const uint64_t* shape, const hetcomm_part_t* parts, size_t part_count,
    const hetcomm_layout_options_t* options, hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* Makes a layout from a mesh of ranks, with one placement for each axis. The mesh has |axis_count|
 * axes; axis i has |axes|[i] ranks. |ranks| lists the ranks of the mesh, with the last axis varying
 * fastest. The arrays are copied. |options| may be NULL.
 *   INVALID_ARGUMENT  There are more than HETCOMM_MAX_DIMENSIONS dimensions or 2^22 ranks, a rank
 *                     occurs twice, an axis has no ranks, or a dimension does not exist or cannot
 *                     be cut. The text names the axis.
 *   OUT_OF_RANGE      There are more than 16 axes.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_from_mesh(
    size_t dimensions, const uint64_t* shape, size_t axis_count, const uint64_t* axes,
    const int32_t* ranks, const hetcomm_placement_t* placements,
    const hetcomm_layout_options_t* options, hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* Makes a layout of activations of |batch| samples, |sequence| tokens and |hidden| features. The
 * number of |ranks| is the product of the data, context and tensor degrees. INVALID_ARGUMENT:
 * |rank_count| is not this product, or a degree does not divide its dimension. OUT_OF_RANGE: there
 * are more than 2^22 ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_from_degrees(
    uint64_t batch, uint64_t sequence, uint64_t hidden, const hetcomm_degrees_t* degrees,
    const int32_t* ranks, size_t rank_count, hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

/* Gets the number of elements that |rank|'s buffer must have. 0: |rank| holds nothing.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_elements(
    const hetcomm_layout_t* layout, int32_t rank, uint64_t* out_elements) HETCOMM_NOEXCEPT;

/* Makes the layout that remains after ranks were lost and the survivors were renumbered. |ranks|[r]
 * is the new number of rank r, or -1 if it is lost. Every surviving rank holds the same elements as
 * before, at the same locations. Replicas on survivors take the place of the lost parts.
 *   PEER_LOST         A box was held only by lost ranks; the text names the first such box, and its
 *                     rank.
 *   INVALID_ARGUMENT  A rank of the layout is not below |rank_count|, or a new number is below -1
 *                     or occurs twice.
 *   OUT_OF_RANGE      There are more than 2^22 ranks.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_after_loss(const hetcomm_layout_t* layout, const int32_t* ranks, size_t rank_count,
                          hetcomm_layout_t** out_layout) HETCOMM_NOEXCEPT;

typedef struct hetcomm_layout_facts_t {
  /* The caller sets it to sizeof(hetcomm_layout_facts_t). */
  size_t struct_size;
  uint64_t dimensions;
  uint64_t shape[HETCOMM_MAX_DIMENSIONS]; /* without padding; 0 past |dimensions| */
  uint32_t terms;                         /* the tensor is the sum of this many terms; at least 1 */
  uint32_t divisor;                       /* divisor of the sum of the terms, at least 1 */
} hetcomm_layout_facts_t;

/* Describes the tensor of |layout| in |*out_facts|, of which the call writes struct_size bytes.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_facts(
    const hetcomm_layout_t* layout, hetcomm_layout_facts_t* out_facts) HETCOMM_NOEXCEPT;

/* Writes the parts that |rank| holds, or all parts if |rank| is -1, but at most |capacity| of them,
 * to |out_parts|, and their total number to |*out_count|. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_parts(const hetcomm_layout_t* layout, int32_t rank, size_t capacity,
                     hetcomm_part_t* out_parts, size_t* out_count) HETCOMM_NOEXCEPT;

/* Writes the layout as a human-readable table, with one line for each part. Writes at most
 * |capacity| bytes, including the terminating NUL, to |out_text|, and the size that the full text
 * needs to |*out_size|. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_describe(const hetcomm_layout_t* layout, size_t capacity, char* out_text,
                        size_t* out_size) HETCOMM_NOEXCEPT;

/* Writes the layout as a JSON document, which libhetcomm_plan and other programs can read
 * (reshard/README.md). |capacity|, |out_text| and |*out_size| are as for hetcomm_layout_describe().
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_layout_json(const hetcomm_layout_t* layout, size_t capacity, char* out_text,
                    size_t* out_size) HETCOMM_NOEXCEPT;

/* Destroys the handle. Reshard plans that were made from the layout remain valid. NULL is accepted.
 * [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_layout_destroy(hetcomm_layout_t* layout)
    HETCOMM_NOEXCEPT;

/* --- reshard plans ------------------------------------------------------------------------- */

/* A reshard plan: the steps that this rank performs to move a list of tensors from one layout to
 * another. */
typedef struct hetcomm_reshard hetcomm_reshard_t;

/* Strategies for moving a tensor. */
enum {
  /* Selects the strategy that is fastest according to the communicator's link model. It sends at
   * most one copy over a link between clusters if that is possible. */
  HETCOMM_STRATEGY_AUTO = 0,
  /* Each rank that holds elements sends one message to each rank that needs them (HetAuto, strategy
   * 1). */
  HETCOMM_STRATEGY_DIRECT = 1,
  /* One rank of the source gathers the tensor and sends it to one rank of the destination, which
   * distributes it (HetAuto, strategy 2). */
  HETCOMM_STRATEGY_LEADER = 2,
  /* Source ranks gather data within groups. One rank of each group sends the data to one rank of
   * the destination, which scatters it within its own group (HetAuto, strategy 3). */
  HETCOMM_STRATEGY_GATHER_P2P_SCATTER = 3,
  /* Each of the receivers that need the same data receives a different piece of it, and they
   * exchange the pieces by an allgather (H2, section 5). */
  HETCOMM_STRATEGY_SENDRECV_ALLGATHER = 4,
  /* Each piece is sent by the best of the ranks that hold it, with the load balanced over all
   * tensors (Hetu v2, section 4.2). */
  HETCOMM_STRATEGY_BSR = 5
};

/* The result of converting a number that is too large for FLOAT8_E4M3FN, which has no infinity. In
 * other types such a number becomes infinity. */
enum {
  /* The largest finite number, with the same sign. Infinities are converted to it too, as in
   * PyTorch 2.13. */
  HETCOMM_OVERFLOW_SATURATE = 0,
  /* NaN, as in collective operations. */
  HETCOMM_OVERFLOW_NAN = 1
};

/* A tensor to be moved. If the types differ, the sender converts the elements. Conversions are
 * possible between FLOAT32, FLOAT16, BFLOAT16 and FLOAT8_*, and between FLOAT64 and FLOAT32.
 *
 * If the source has multiple terms and the destination has one, the destination gets their sum. The
 * terms are sent in the source's type and added in the order of their numbers. They are added in
 * FLOAT64 if the source or destination type is FLOAT64, in FLOAT32 for other floating-point types,
 * and otherwise in their own type. Integers wrap around, and BOOL is true if any term is true. If
 * the tensor is an average, the sum is divided. The result is rounded to the destination's type
 * only once, so it does not depend on strategies, slices and transports. A sum whose type does not
 * change overflows as in collective operations. */
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
  /* Maximum number of executions in progress at a time. 0 means 1. */
  uint32_t in_flight;
  /* Distinguishes reshard plans between the same ranks. Plans with the same tag are paired in the
   * order in which each rank created them. */
  uint64_t tag;
  /* Approximate size of messages in bytes. A long tensor is cut into slices, which are gathered,
   * sent and scattered one after another. There are up to 64 slices of any size, or up to 65,536
   * slices if each has at least 64 KiB of the whole tensor. The tensor is cut along the outermost
   * dimension that has enough elements, so rows are not split. Short tensors share messages. 0: the
   * library selects the size. */
  uint64_t slice_bytes;
  /* GATHER_P2P_SCATTER: the number of slabs that the first dimension is cut into. 0: the greatest
   * common divisor of the numbers of pieces that the two layouts cut it into (HetAuto, section
   * 5.2). */
  uint64_t outer;
  /* Limit on the host memory, in bytes for each direction, for messages that are packed or waiting
   * to be unpacked. It also limits the memory for the sums of one slice before they are rounded. 0:
   * 64 MiB. The limit is exceeded only if a single message or slice requires it. Ranks may differ
   * in this option. */
  uint64_t landing_bytes;
  /* 1: this rank verifies the reshard plan of all ranks: every element of the destination is
   * written exactly once, from the correct source. The verification takes as long as making the
   * plan. It does not cover deadlocks, which cannot occur because all ranks perform the moves in
   * the same order. Ranks may differ in this option. */
  int32_t prove;
  /* One of HETCOMM_OVERFLOW_*, for conversions of elements. */
  int32_t overflow;
  /* The weight by which this rank's sends share a network interface with queues and with other
   * reshard plans that have a weight (hetcomm/queue.h). 0: the sends do not participate in this
   * sharing, or have a weight of 1 if max_bytes_per_second is not 0. At most
   * HETCOMM_QUEUE_MAX_WEIGHT. Ranks may differ in this option. */
  uint32_t weight;
  /* The maximum rate at which this rank sends, in bytes per second. The destination ranks share the
   * rate in proportion to their bytes. 0: no limit. Ranks may differ in this option. */
  uint64_t max_bytes_per_second;
} hetcomm_reshard_options_t;

/* Makes a reshard plan that moves |tensors| together, and prepares this rank's share. The call does
 * not wait for other ranks. The layouts may be destroyed afterwards. |options| may be NULL. The
 * communicator cannot be destroyed before the reshard plan (BUSY).
 *
 * All ranks must specify the same boxes. The offsets and gaps that a rank specifies for the memory
 * of other ranks are ignored, but the order of the strides is not: if all boxes of both sides store
 * the dimensions in the same order, other than C order, messages use that order too, and need no
 * transposition. Executions on ranks that specify different boxes or orders end with MISMATCH.
 *   INVALID_ARGUMENT  There are no tensors, shapes differ, types cannot be converted, an option is
 *                     invalid, or two boxes of a destination overlap in the memory of a rank (boxes
 *                     that only interleave do not overlap).
 *   OUT_OF_RANGE      A rank of a layout is not in the communicator, in_flight is above 1024, the
 *                     weight is above HETCOMM_QUEUE_MAX_WEIGHT, or there are more than 2^24
 *                     tensors.
 *   UNSUPPORTED       The strategy does not support the layouts, BOOL would be averaged, or source
 *                     and destination both have multiple terms and different divisors.
 * The text names the tensor, and the first faulty rank and box. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_create(
    hetcomm_communicator_t* communicator, const hetcomm_reshard_tensor_t* tensors,
    size_t tensor_count, const hetcomm_reshard_options_t* options,
    hetcomm_reshard_t** out_reshard) HETCOMM_NOEXCEPT;

/* Makes |reshard| again in |communicator|, which usually was rebuilt after ranks were lost. The new
 * reshard plan has the same options, and the layouts that remain (hetcomm_layout_after_loss()).
 * |ranks|[r] is the number in |communicator| of rank r of the old communicator, or -1 if it is
 * lost. |rank_count| is the size of the old communicator. Each rank has its own old and new number,
 * and can get those of the other ranks by an allgather. All ranks of |communicator| that are in the
 * layouts make this call with the same arguments. The call does not wait for other ranks. It does
 * not change |reshard|, which the caller must still destroy.
 *   PEER_LOST         A box was held only by lost ranks; the text names tensor, box and rank.
 * Other errors are those of hetcomm_layout_after_loss() and hetcomm_reshard_create().
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_rebuild(
    const hetcomm_reshard_t* reshard, hetcomm_communicator_t* communicator, const int32_t* ranks,
    size_t rank_count, hetcomm_reshard_t** out_reshard) HETCOMM_NOEXCEPT;

/* Starts to move the tensors from |sources| to |destinations|, which have a buffer for each tensor,
 * in host or device memory. If this rank holds no part of a tensor, the tensor's buffer is ignored.
 * If it holds no part of any tensor on one side, that array may be NULL. The buffers belong to the
 * execution until the request has completed. |options| may be NULL; notify_value in them is
 * ignored. A rejected call does not count, and no other rank is notified: the caller can repeat it,
 * or notify the others with hetcomm_reshard_refuse().
 *
 * Sources may share memory. An element of a destination must not overlap any other element of a
 * destination, or an element of a source. This applies within this execution, and between this
 * execution and others of |reshard| that are in progress, unless both are in the same stream. The
 * rule is about elements, not buffers: tensors may interleave in one buffer. There is one exception
 * within an execution: an element that a rank holds both before and after may stay at its location,
 * unless it is converted or summed.
 *
 * The library checks this rule for buffers in memory that the host can access, and for buffers in
 * the same device allocation. A wrapped memory counts as part of its allocation. An OpenCL
 * sub-buffer is not compared with its parent buffer.
 *   BUSY              |in_flight| executions are in progress.
 *   INVALID_ARGUMENT  A required array is NULL, the options have flags, or a destination overlaps
 *                     another destination or a source. The text names the tensors.
 *   OUT_OF_RANGE      A buffer is shorter than the layout needs.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_start(
    hetcomm_reshard_t* reshard, const hetcomm_buffer_t* sources,
    const hetcomm_buffer_t* destinations, const hetcomm_operation_options_t* options,
    hetcomm_request_t** out_request) HETCOMM_NOEXCEPT;

/* Notifies the other ranks that this rank refuses the next execution that it would start. The
 * function is for callers that check arguments before they call. On the other ranks that execution
 * ends with MISMATCH and |reason|. |reason| may be NULL; at most 400 bytes of it are sent. On this
 * rank the execution counts as started. If all ranks refuse the same execution, nothing fails. The
 * call does not wait. Without the progress thread the others are notified during this rank's next
 * call that makes progress. The call has no effect once the reshard plan has ended. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_refuse(hetcomm_reshard_t* reshard, const char* reason) HETCOMM_NOEXCEPT;

/* Gets the number of executions in progress on this rank: those that are in a group, that wait for
 * a stream, or that have started. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_pending(hetcomm_reshard_t* reshard, uint32_t* out_count) HETCOMM_NOEXCEPT;

/* Waits until no execution is in progress on this rank. The caller must still wait for their
 * requests or destroy them. A |timeout_ns| of 0 means HETCOMM_TIMEOUT. TIMED_OUT: some executions
 * are still in progress. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_drain(hetcomm_reshard_t* reshard, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Requests that all executions in progress on this rank end with CANCELLED, like
 * hetcomm_request_cancel. If no rank has sent data of an execution, its cancellation does not end
 * the reshard plan. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_cancel(hetcomm_reshard_t* reshard)
    HETCOMM_NOEXCEPT;

/* Metrics of a reshard plan. */
typedef struct hetcomm_reshard_facts_t {
  /* The caller sets it to sizeof(hetcomm_reshard_facts_t). */
  size_t struct_size;
  /* Strategy that moves the first tensor: one of HETCOMM_STRATEGY_* except AUTO. */
  int32_t strategy;
  /* 1: |strategy| moves all tensors. */
  int32_t is_strategy_of_all;
  /* Estimated duration of an execution on all ranks, according to the communicator's link model.
   * The estimate lets all tensors share the links. 0: there is no model. */
  uint64_t forecast_ns;
  /* Bytes and messages that this rank sends and receives in an execution. */
  uint64_t bytes_sent;
  uint64_t bytes_received;
  uint64_t messages_sent;
  uint64_t messages_received;
  /* Host memory of this rank, in bytes, that an execution needs in addition to landing_bytes, for
   * the intermediate data of strategies with multiple steps. */
  uint64_t scratch_bytes;
} hetcomm_reshard_facts_t;

/* Writes the metrics of |reshard| to |*out_facts|, as many as fit into struct_size. If there is a
 * link model, the call recomputes the forecast. INVALID_ARGUMENT: struct_size is 0 or does not
 * match any version of the structure. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_facts(
    hetcomm_reshard_t* reshard, hetcomm_reshard_facts_t* out_facts) HETCOMM_NOEXCEPT;

/* Formats of a description. */
enum {
  HETCOMM_RESHARD_TEXT = 0, /* human-readable tables */
  HETCOMM_RESHARD_JSON = 1, /* steps, bytes, forecast and the strategies that were considered; an
                               array if there are multiple tensors */
  /* A picture of the ranks and the data that each sends to the others, only for plans with one
   * tensor. Version 1.0 will remove this format; libhetcomm_plan draws the picture from the
   * JSON. */
  HETCOMM_RESHARD_SVG = 2
};

/* Writes the reshard plan of all ranks in |format|. |capacity|, |out_text| and |*out_size| are as
 * for hetcomm_layout_describe(). The call recomputes the plan for all ranks. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_reshard_describe(hetcomm_reshard_t* reshard, int32_t format, size_t capacity,
                         char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Destroys this rank's share of the reshard plan. Executions on other ranks that depend on this
 * rank end with ABORTED. BUSY: executions are in progress on this rank. NULL is accepted.
 * [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_reshard_destroy(hetcomm_reshard_t* reshard)
    HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_RESHARD_H_ */
