/* A pipeline runs the stages of a model on multiple ranks, and moves activations and gradients
 * between them while the ranks compute (HetAuto, section 5; Hapt, section 4; H2, section 4).
 *
 *   hetcomm_pipeline_create(...)   from a pipeline plan and the trainer's callbacks
 *   hetcomm_pipeline_run(...)      one training step: every rank performs its schedule
 *   hetcomm_pipeline_destroy(...)
 *
 * A plan is a JSON document (pipeline/README.md). It assigns the stages of the model to ranks, and
 * specifies the schedule and the tensors that are passed from stage to stage. The trainer's
 * callbacks compute the stages. A stage of this rank is also called a chunk.
 *
 * Data. Each boundary between stages has one reshard plan (hetcomm/reshard.h) for each direction,
 * with its own flow control. So a late transfer delays only the steps that depend on it, regardless
 * of the order of the schedule. The pipeline owns the buffers of the boundaries. The callback of a
 * step gets the buffers that it reads and writes. A stage's inputs, and gradients of its outputs,
 * stay valid and keep their contents until the last step of their micro-batch has ended. Outputs,
 * and gradients of inputs, are valid only during the step that writes them.
 *
 * Copies. If a parallel degree does not cut a tensor, the ranks along that degree hold equal copies
 * of the tensor and of its gradient. The pipeline moves one of these copies and does not add them
 * up. A tensor-parallel backward step must sum the gradient of such an input over its ranks before
 * it returns. An output that is passed to two later stages is a separate tensor of each boundary:
 * the callback writes both, and adds both gradients.
 *
 * Lengths. The micro-batches of a pipeline can have different lengths, such as sequence lengths.
 * The plan lists the possible lengths (pipeline/README.md). Any rank can specify the lengths for a
 * run, and the pipeline distributes them to the other ranks. The pipeline moves only as many bytes
 * as the length of a micro-batch requires.
 *
 * Sums. The pipeline sums the weight gradients that are registered with
 * hetcomm_pipeline_set_gradients() over the ranks that hold the same weights. It sums those of a
 * stage while later steps run (AutoHet, section 4). The trainer can sum other gradients itself in
 * the callback |reduce_grad|. The trainer chooses the weighting of gradients, for instance by
 * samples or tokens, and scales its loss accordingly. The gradient weight in a plan is meant for
 * this purpose. hetcomm_pipeline_total() computes the total loss and the norm of the gradients on
 * all ranks.
 *
 * Threads. hetcomm_pipeline_run() calls the callbacks in the calling thread, one at a time, in the
 * order of the schedule. If the context has a progress thread (hetcomm/context.h), data moves while
 * they run. Otherwise it moves only between steps, and while a step waits.
 *
 * Failures. If a callback fails, a rank is lost, a time limit passes or the pipeline is cancelled,
 * the run ends on all ranks. The rank that failed gets the status of the failure. The others get
 * PEER_LOST if they detected the death of a rank, and otherwise ABORTED. The text names the rank
 * that failed, its step and the reason. A rank that is in a callback notices the failure when the
 * callback has returned. If a rank fails at the very end of a run, another rank's run may already
 * have returned OK. If a rank fails at the beginning of a run, the failure can still end another
 * rank's previous run, or its creation of the pipeline. After a failure the pipeline has ended:
 * later runs fail with the same status. To continue, destroy it and create a new one; after a loss
 * of ranks this requires a rebuilt communicator. A run that fails does not affect the caller's
 * communicator.
 *
 * The conventions of hetcomm/hetcomm.h apply. The functions belong to libhetcomm_pipeline, whose
 * error text hetcomm_pipeline_last_error() returns. While the version is 0.x, a new minor version
 * may change them. */
#ifndef HETCOMM_PIPELINE_H_
#define HETCOMM_PIPELINE_H_

#include <hetcomm/communicator.h>
#include <hetcomm/datatype.h>
#include <hetcomm/reshard.h>
#include <hetcomm/stream.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hetcomm_pipeline hetcomm_pipeline_t;

/* Returns the version of the loaded library, such as "0.2.0". The string is in static storage.
 * [any-thread] */
HETCOMM_API const char* hetcomm_pipeline_version_string(void) HETCOMM_NOEXCEPT;

/* Returns the error text of this thread's last failed call of this library, or "" if no call has
 * failed. The string is borrowed until this thread's next call of this library. [any-thread] */
HETCOMM_API const char* hetcomm_pipeline_last_error(void) HETCOMM_NOEXCEPT;

/* Kinds of steps. The missing numbers belong to actions without a callback, such as sends. */
enum {
  HETCOMM_PIPELINE_FORWARD = 0,
  HETCOMM_PIPELINE_BACKWARD = 1,     /* gradients of inputs and of weights */
  HETCOMM_PIPELINE_INPUT_GRAD = 2,   /* gradients of inputs only */
  HETCOMM_PIPELINE_WEIGHT_GRAD = 3,  /* gradients of weights, after INPUT_GRAD */
  HETCOMM_PIPELINE_RECOMPUTE = 4,    /* repeats the forward step; writes no outputs */
  HETCOMM_PIPELINE_REDUCE_GRAD = 13, /* all gradients of the stage's weights are complete */
  HETCOMM_PIPELINE_UNSHARD = 14,     /* gathers the stage's weights */
  HETCOMM_PIPELINE_RESHARD = 15      /* drops the gathered weights, as in FSDP */
};

/* Flags of a run. */
enum {
  /* The run performs only the forward steps of the schedule, in the same order, and gathers and
   * drops weights around them. */
  HETCOMM_PIPELINE_EVALUATE = 1
};

/* This rank's part of a tensor, in a buffer of the pipeline. It is dense and in C order. */
typedef struct hetcomm_pipeline_tensor {
  const char* name; /* name of the tensor in the plan */
  hetcomm_buffer_t buffer;
  /* Address of the first byte, if the CPU can access the device's memory. Otherwise NULL:
   * hetcomm_memory_address() returns the vendor's address or handle of buffer.memory, and the
   * tensor starts buffer.offset bytes after that address. */
  void* address;
  hetcomm_datatype_t type;
  uint32_t dimensions;
  const uint64_t* shape; /* |dimensions| entries, slowest dimension first */
} hetcomm_pipeline_tensor_t;

/* The description of one step that is passed to its callback. It is valid until the callback
 * returns. Buffers are valid for as long as the top of this header says. */
typedef struct hetcomm_pipeline_action {
  size_t struct_size;
  int32_t kind;         /* one of HETCOMM_PIPELINE_* */
  uint32_t chunk;       /* index of the stage among those of this rank */
  uint32_t stage;       /* number of the stage in the pipeline */
  uint32_t micro_batch; /* 0 if the kind has none */
  /* Number of the slot of this micro-batch's activations, below the |slots| of
   * hetcomm_pipeline_facts_t. No other activations of this rank, of any chunk or micro-batch, use
   * the same slot at the same time. The trainer can use it as an index for data that a backward
   * step needs, such as a copy of an output. */
  uint32_t slot;
  uint32_t flags; /* flags of the run: HETCOMM_PIPELINE_EVALUATE or 0 */
  uint64_t step;  /* number of the training step (hetcomm_pipeline_run_options_t) */
  /* The length of the micro-batch, one of the lengths in the plan. The shapes of the tensors depend
   * on it. 0: the plan has no lengths, or the kind has no micro-batch. */
  uint64_t length;
  /* Tensors of all boundaries that lead to the stage, in the order of the plan. All kinds with a
   * micro-batch read them. */
  const hetcomm_pipeline_tensor_t* inputs;
  size_t input_count;
  /* Tensors of all boundaries that lead out of the stage. FORWARD writes them. Other kinds get
   * none. */
  const hetcomm_pipeline_tensor_t* outputs;
  size_t output_count;
  /* Gradients of the outputs that have one. BACKWARD, INPUT_GRAD and WEIGHT_GRAD read them. Other
   * kinds get none. */
  const hetcomm_pipeline_tensor_t* output_grads;
  size_t output_grad_count;
  /* Gradients of the inputs that have one. BACKWARD and INPUT_GRAD write them. Other kinds get
   * none. */
  const hetcomm_pipeline_tensor_t* input_grads;
  size_t input_grad_count;
  /* The stream in the pipeline's options. The callback may return before its work in this stream
   * has ended. */
  hetcomm_stream_t* stream;
  /* A callback that fails can write its reason here, with a terminating NUL. */
  char* reason;
  size_t reason_capacity;
} hetcomm_pipeline_action_t;

/* Performs a step. Returns HETCOMM_OK, or the negative status with which the run ends on this rank.
 * Any other value counts as INTERNAL. So do BUSY and INVALID_ARGUMENT, because a run with one of
 * these statuses has not started. The error texts on all ranks include the |reason| that the
 * function writes. The function may call hetcomm, but must not run or destroy this pipeline. It
 * must not throw. */
typedef hetcomm_status_t (*hetcomm_pipeline_function_t)(void* user_data,
                                                        const hetcomm_pipeline_action_t* action);

typedef struct hetcomm_pipeline_callback {
  hetcomm_pipeline_function_t function; /* NULL: no callback */
  void* user_data;
} hetcomm_pipeline_callback_t;

/* The callbacks of a chunk. Every kind of step in the schedule needs its callback, except
 * |reduce_grad|, |unshard| and |reshard|: if one of these is NULL, its steps are skipped. If the
 * rank has registered gradients (hetcomm_pipeline_set_gradients) and the schedule has no step for
 * |reduce_grad|, the pipeline calls |reduce_grad| after the last step that changes the stage's
 * gradients. Callbacks and their |user_data| must stay valid until the pipeline is destroyed. */
typedef struct hetcomm_pipeline_chunk {
  /* The caller sets it to sizeof(hetcomm_pipeline_chunk_t) in the first entry. */
  size_t struct_size;
  hetcomm_pipeline_callback_t forward;
  hetcomm_pipeline_callback_t backward;
  hetcomm_pipeline_callback_t input_grad;
  hetcomm_pipeline_callback_t weight_grad;
  hetcomm_pipeline_callback_t recompute;
  hetcomm_pipeline_callback_t reduce_grad;
  hetcomm_pipeline_callback_t unshard;
  hetcomm_pipeline_callback_t reshard;
} hetcomm_pipeline_chunk_t;

/* Performs two steps, in any order or concurrently. The rules for hetcomm_pipeline_function_t
 * apply. The schedule dualpipe-v has such pairs, and so do schedules with actions like
 * "(0F7;7B3)OVERLAP_F_B". */
typedef hetcomm_status_t (*hetcomm_pipeline_pair_t)(void* user_data,
                                                    const hetcomm_pipeline_action_t* first,
                                                    const hetcomm_pipeline_action_t* second);

typedef struct hetcomm_pipeline_options {
  /* The caller sets it to sizeof(hetcomm_pipeline_options_t). */
  size_t struct_size;
  /* Maximum time that hetcomm_pipeline_create() waits until all ranks have called it. 0:
   * HETCOMM_TIMEOUT. Later waits in this call always use HETCOMM_TIMEOUT. */
  uint64_t timeout_ns;
  /* The stream that the callbacks submit their work to. Data is sent when the stream has reached
   * the end of the step that produced it. The stream must belong to the device of this rank in the
   * plan, have the flag HETCOMM_STREAM_NOT_HELD, and exist until the pipeline is destroyed. NULL: a
   * step's work has ended when its callback returns. */
  hetcomm_stream_t* stream;
  /* Called for pairs of steps in the schedule. NULL: the two steps run one after the other. */
  hetcomm_pipeline_pair_t pair;
  void* pair_user_data;
} hetcomm_pipeline_options_t;

/* Creates a pipeline. Collective over |communicator|: all ranks call it with the same plan, and the
 * call waits for all of them. If it fails on one rank, it fails on all. |plan| is the text of a
 * JSON document, not the name of a file. Its ranks are those of |communicator|. |chunks| has an
 * entry for each stage of this rank, in the order of the stages. |options| may be NULL.
 * |communicator| must exist until the pipeline is destroyed.
 *   INVALID_ARGUMENT  |plan| is malformed or invalid, or is for a different number of ranks, or the
 *                     callback for a step of the schedule is missing. The text names the entry, or
 *                     the rank and the step.
 *   MISMATCH          The ranks have different plans; the text names two of them.
 *   ABORTED           Another rank failed; the text has its rank, status and reason.
 *   UNSUPPORTED       |plan| has a different version.
 *   NOT_FOUND         There is no schedule with the name in |plan|.
 *   TIMED_OUT         A rank did not make the call in time. The collective operations of
 *                     |communicator| have then failed too. After the other errors in this list
 *                     |communicator| remains usable.
 *   OUT_OF_RANGE      A stage would hold more activations than its limit, or the device of this
 *                     rank in the plan does not exist.
 * Other errors are those of hetcomm_communicator_split(), hetcomm_memory_allocate() and
 * hetcomm_reshard_create(). Only one thread at a time may use |communicator| in this call.
 * [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_create(
    hetcomm_communicator_t* communicator, const char* plan, const hetcomm_pipeline_chunk_t* chunks,
    size_t chunk_count, const hetcomm_pipeline_options_t* options,
    hetcomm_pipeline_t** out_pipeline) HETCOMM_NOEXCEPT;

/* Called while a run waits. Returns HETCOMM_OK if the run should continue. */
typedef hetcomm_status_t (*hetcomm_pipeline_interrupt_t)(void* user_data);

typedef struct hetcomm_pipeline_run_options {
  /* The caller sets it to sizeof(hetcomm_pipeline_run_options_t). */
  size_t struct_size;
  /* The number of the training step, which must be the same on all ranks. If the numbers differ,
   * the run ends with MISMATCH on a rank that detects it. */
  uint64_t step;
  /* Time limit of the run. It does not interrupt a callback. 0: the run has no limit, but each wait
   * for the data of a step, or for the other ranks at the end, takes at most HETCOMM_TIMEOUT. */
  uint64_t timeout_ns;
  uint32_t flags; /* HETCOMM_PIPELINE_EVALUATE or 0; MISMATCH if ranks differ */
  uint32_t reserved;
  /* The lengths of the micro-batches of this rank's pipeline, each of them one of the lengths in
   * the plan. NULL: this rank does not have them, or the plan has no lengths. If the plan has
   * lengths, at least one rank of the pipeline must specify them, and all ranks wait for each other
   * at the beginning of the run. The array is read only during the call. */
  const uint64_t* lengths;
  size_t length_count; /* the number of micro-batches */
  /* Called by the calling thread about every 50 ms while the run waits for other ranks. If it
   * returns a negative status, for instance because the user wants to stop, the run ends on all
   * ranks as if a callback had failed. Any other value except HETCOMM_OK counts as INTERNAL. The
   * function must not run or destroy this pipeline, and must not throw. NULL: waits are not
   * interrupted. */
  hetcomm_pipeline_interrupt_t interrupt;
  void* interrupt_user_data;
} hetcomm_pipeline_run_options_t;

/* Performs this rank's steps, and waits until all ranks have performed theirs. Every rank calls it.
 * |options| may be NULL. The status says how the run ended on this rank; see the top of this
 * header. BUSY: a run is in progress. INVALID_ARGUMENT: |options| are invalid, for instance because
 * they have an unknown flag or length, or lengths for a different number of micro-batches. After
 * BUSY, or INVALID_ARGUMENT for |options|, no run has started, and the other ranks wait for this
 * one. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_run(
    hetcomm_pipeline_t* pipeline, const hetcomm_pipeline_run_options_t* options) HETCOMM_NOEXCEPT;

/* Replaces the plan, between two runs, by |plan|, which may differ in the schedules, the limits on
 * activations, and the settings of boundaries (strategy, items in flight, slices). Collective:
 * every rank calls it with the same plan. The callbacks that the new schedule needs must have been
 * passed to hetcomm_pipeline_create(). |timeout_ns| is as in hetcomm_pipeline_options_t. Errors are
 * those of hetcomm_pipeline_create(), and BUSY. If a rank is lost or does not make the call in
 * time, the pipeline ends on all ranks. After any other failure it keeps its old plan. The call
 * discards the trace of the last run. During the call there are buffers for both plans. Work in the
 * pipeline's stream may still use the buffers of the last run: wait for that work before the call.
 * [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_set_schedule(
    hetcomm_pipeline_t* pipeline, const char* plan, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* The gradient of a weight tensor on this rank. */
typedef struct hetcomm_pipeline_gradient {
  /* The caller sets it to sizeof(hetcomm_pipeline_gradient_t) in the first entry. */
  size_t struct_size;
  uint32_t item;  /* number of a model item that a stage of this rank has or shares */
  uint32_t index; /* number of the tensor within the item, the same on all ranks */
  /* The distribution of the tensor over the ranks of the stage, by their ranks in the communicator
   * of hetcomm_pipeline_create(). Ranks whose gradients are added, such as those along a data
   * degree, hold different terms (HETCOMM_PLACEMENT_PARTIAL). Ranks that hold the same elements are
   * replicas (HETCOMM_PLACEMENT_REPLICATE). Other stages and pipelines may cut the tensor
   * differently. The layout is read only during the call. */
  const hetcomm_layout_t* layout;
  /* The buffer must stay valid until the gradients are replaced or the pipeline is destroyed. A
   * plain pointer may also point to device memory, as for hetcomm_buffer_pointer(). */
  hetcomm_buffer_t buffer;
  hetcomm_datatype_t type;
  uint32_t reserved;
} hetcomm_pipeline_gradient_t;

/* Registers the gradients that later runs sum, and replaces those that were registered before.
 * Collective: all ranks call it. All ranks that hold an item must register all of its tensors,
 * including tensors of which they hold no elements. A |count| of 0 registers none.
 *
 * In each run except an evaluation the pipeline reads the buffers of a stage after the stage has
 * performed its last step that changes gradients, and its callback |reduce_grad|. At the end of the
 * run each buffer has the sum over all ranks that hold the same elements. The sum includes the
 * terms of a stage, the stages that share the item, and all pipelines. Nothing is summed if the
 * plan has no backward steps. Ranks that hold copies get sums that were computed in the same order,
 * and with most networks the same bits. A rank with a stream in its options needs the callback
 * |reduce_grad|, which must wait for the stream. A rank that holds an item in two stages must add
 * the gradients of both itself, and register their sum once.
 *   INVALID_ARGUMENT  A rank does not hold the item, a buffer is too short, or ranks disagree about
 *                     a tensor. The text names the rank, the item and the tensor.
 * |timeout_ns| and other errors are as for hetcomm_pipeline_set_schedule(). [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_set_gradients(
    hetcomm_pipeline_t* pipeline, const hetcomm_pipeline_gradient_t* gradients, size_t count,
    uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Totals over all ranks. */
typedef struct hetcomm_pipeline_totals {
  /* The caller sets it to sizeof(hetcomm_pipeline_totals_t). */
  size_t struct_size;
  /* The caller sets it to the same value on all ranks. 2: the Euclidean norm. INFINITY: the largest
   * absolute value. Any other number p above 0: the p-norm. 0: no norm, and |norm| and
   * |has_nonfinite| become 0. */
  double norm_type;
  /* The norm of the current contents of the registered gradient buffers
   * (hetcomm_pipeline_set_gradients()). Each element of the model counts once, regardless of the
   * number of ranks that hold it. */
  double norm;
  /* 1: an element of the gradients is infinite or NaN. The norm of finite elements can also be
   * infinite. */
  int32_t has_nonfinite;
  int32_t reserved;
} hetcomm_pipeline_totals_t;

/* Replaces each of the |count| numbers in |values|, such as losses and token counts, by its sum
 * over all ranks. Also fills in |totals| unless it is NULL. |count| is at most 4096. All ranks add
 * in the same order. Collective: every rank makes the call between two runs, with the same |count|.
 * Work in streams that modifies the gradients must have ended. If the call fails, |values| are
 * unchanged.
 *   INVALID_ARGUMENT  |values| is NULL, |count| is too large, or a field of |totals| is invalid;
 *                     the other ranks get ABORTED.
 *   MISMATCH          Ranks request different values or norms.
 * |timeout_ns| and other errors are as for hetcomm_pipeline_set_schedule(). [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_pipeline_total(hetcomm_pipeline_t* pipeline, double* values, size_t count,
                       hetcomm_pipeline_totals_t* totals, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Ends the current run on all ranks. If no run is in progress, for instance because it has just
 * ended, the call ends the next one. The run ends with CANCELLED on this rank, and with ABORTED and
 * |reason|, which may be NULL, on the others. The pipeline has then ended. The call does not wait.
 * It may be made from a callback. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_pipeline_cancel(hetcomm_pipeline_t* pipeline, const char* reason) HETCOMM_NOEXCEPT;

/* Metrics of this rank. Counts and times are sums over all runs, including failed ones. Bytes,
 * slots and chunks are those of the current plan and gradients. */
typedef struct hetcomm_pipeline_facts_t {
  /* The caller sets it to sizeof(hetcomm_pipeline_facts_t). */
  size_t struct_size;
  uint64_t runs;      /* successful runs */
  uint64_t callbacks; /* calls of callbacks */
  uint64_t callback_ns;
  uint64_t data_wait_ns; /* time spent waiting for inputs and gradients */
  uint64_t room_wait_ns; /* time spent waiting until an earlier item's buffer is free */
  uint64_t end_wait_ns;  /* time spent waiting for the other ranks at the end of runs */
  uint64_t buffer_bytes; /* memory of the boundaries' buffers, and of packed gradients */
  uint32_t slots;        /* maximum number of activations held at a time */
  uint32_t chunks;       /* stages of this rank */
} hetcomm_pipeline_facts_t;

/* Writes the metrics to |*out_facts|, as many as fit into struct_size. BUSY: a run is in progress.
 * [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_facts(
    hetcomm_pipeline_t* pipeline, hetcomm_pipeline_facts_t* out_facts) HETCOMM_NOEXCEPT;

/* Formats of a trace. */
enum {
  HETCOMM_PIPELINE_TRACE_JSON = 0,  /* the steps with their times in nanoseconds */
  HETCOMM_PIPELINE_TRACE_CHROME = 1 /* for chrome://tracing or Perfetto */
};

/* Writes the start and end times of each step of this rank's last run, and its waiting time before
 * that, in |format|. Times are relative to the beginning of the run on this rank, which differs
 * between ranks. After a failed run the trace has the steps up to the failure. A run that fails
 * before its first step leaves the previous trace unchanged. NOT_FOUND: there is no trace. BUSY: a
 * run is in progress. INVALID_ARGUMENT: |format| is unknown. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_pipeline_trace(hetcomm_pipeline_t* pipeline, int32_t format, size_t capacity,
                       char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Destroys the pipeline. Work in the pipeline's stream may still use its buffers, so wait for the
 * stream first, even after a failed run. Later runs of the other ranks fail: ranks that exchange
 * data with this one, and then their peers, get ABORTED, and other ranks fail at their time limit.
 * BUSY: a run is in progress; the call has changed nothing. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_pipeline_destroy(hetcomm_pipeline_t* pipeline) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PIPELINE_H_ */
