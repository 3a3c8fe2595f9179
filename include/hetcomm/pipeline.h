/* A pipeline runs the stages of a model on several ranks, and moves activations and gradients
 * between them while the ranks compute (HetAuto, section 5; Hapt, section 4; H2, section 4).
 *
 *   hetcomm_pipeline_create(...)   from a pipeline plan and the trainer's callbacks
 *   hetcomm_pipeline_run(...)      one training step: every rank performs its schedule
 *   hetcomm_pipeline_destroy(...)
 *
 * A plan is a JSON document (pipeline/README.md). It deals the stages of the model to ranks, and
 * names the schedule and the tensors that go from stage to stage. The trainer's callbacks compute
 * the stages. A stage of a rank is also called a chunk.
 *
 * Data. For each boundary between stages, and each direction, there is one reshard plan
 * (hetcomm/reshard.h), with credits of its own. So a transfer that is late holds up only the steps
 * that need it, whatever the order of the schedule. Buffers of boundaries belong to the pipeline.
 * The callback of a step gets the buffers that it reads and writes. A stage's inputs, and gradients
 * of its outputs, stay valid and keep their contents until the last step of their micro-batch has
 * ended. Outputs, and gradients of inputs, are valid during the step that writes them.
 *
 * Copies. Ranks along a degree that cuts nothing of a tensor hold equal copies of it, also of its
 * gradient. The pipeline moves one of them and adds up nothing. A tensor-parallel backward step
 * sums the gradient of such an input over its ranks before it returns. An output that goes to two
 * later stages is a tensor of each boundary: the callback writes both, and adds up both gradients.
 *
 * Lengths. The micro-batches of a pipeline may have different lengths, such as of their sequences.
 * The plan lists the lengths that there are (pipeline/README.md). Any rank may tell the lengths of
 * a run, and the other ranks learn them. A micro-batch moves as many bytes as its length needs.
 *
 * Sums. The pipeline adds up the gradients of weights that hetcomm_pipeline_set_gradients() names,
 * over the ranks that hold the same weights. It adds those of a stage while later steps run
 * (AutoHet, section 4). The trainer may sum other gradients itself in the callback |reduce_grad|.
 * The trainer decides how much a gradient counts, for instance by samples or tokens, and multiplies
 * its loss by that. A plan's weight of gradients is meant for this purpose.
 * hetcomm_pipeline_total() gives all ranks the loss and the norm of gradients.
 *
 * Threads. hetcomm_pipeline_run() calls the callbacks in the calling thread, one at a time, in the
 * order of the schedule. Data moves while they run if the context has a progress thread
 * (hetcomm/context.h), and otherwise only between steps, and while a step waits.
 *
 * Failures. If a callback fails, a rank is lost, a time limit passes or the pipeline is cancelled,
 * the run ends on all ranks. The rank that failed gets the status of the failure. The others get
 * PEER_LOST if they saw a rank die, and else ABORTED. The text names the rank that failed, its step
 * and the reason. A rank that is in a callback notices when the callback has returned. If a rank
 * fails at the very end, another rank's run may already have returned OK. If a rank fails at the
 * beginning of a run, the failure may still end another rank's previous run, or its creation. After
 * a failure the pipeline has ended: later runs fail with the same status. To go on, destroy it and
 * create another one, after a loss of ranks in a rebuilt communicator. A run that fails does not
 * affect the caller's communicator.
 *
 * The conventions of hetcomm/hetcomm.h hold. The functions are those of libhetcomm_pipeline, whose
 * error text hetcomm_pipeline_last_error() gives. While the version is 0.x, a minor version may
 * change them. */
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

/* Returns the version of the loaded library, such as "0.2.0". The text is in static storage.
 * [any-thread] */
HETCOMM_API const char* hetcomm_pipeline_version_string(void) HETCOMM_NOEXCEPT;

/* Returns the error text of this thread's last failed call of this library, or "" if no call has
 * failed. Borrowed until this thread's next call of this library. [any-thread] */
HETCOMM_API const char* hetcomm_pipeline_last_error(void) HETCOMM_NOEXCEPT;

/* Kinds of steps. The missing numbers belong to actions that have no callback, such as sends. */
enum {
  HETCOMM_PIPELINE_FORWARD = 0,
  HETCOMM_PIPELINE_BACKWARD = 1,     /* gradients of inputs and of weights */
  HETCOMM_PIPELINE_INPUT_GRAD = 2,   /* gradients of inputs only */
  HETCOMM_PIPELINE_WEIGHT_GRAD = 3,  /* gradients of weights, after INPUT_GRAD */
  HETCOMM_PIPELINE_RECOMPUTE = 4,    /* repeats the forward step; writes no outputs */
  HETCOMM_PIPELINE_REDUCE_GRAD = 13, /* every gradient of the stage's weights has been added */
  HETCOMM_PIPELINE_UNSHARD = 14,     /* gathers the stage's weights */
  HETCOMM_PIPELINE_RESHARD = 15      /* drops the gathered weights, as FSDP names it */
};

/* Flags of a run. */
enum {
  /* The run performs the forward steps of the schedule only, in the same order, and gathers and
   * drops weights around them. */
  HETCOMM_PIPELINE_EVALUATE = 1
};

/* A tensor in a buffer of the pipeline: this rank's share, dense and in C order. */
typedef struct hetcomm_pipeline_tensor {
  const char* name; /* as in the plan */
  hetcomm_buffer_t buffer;
  /* Address of the first byte, if the CPU may touch the device's memory. Otherwise NULL:
   * hetcomm_memory_address() of buffer.memory gives the vendor's address or handle, and the tensor
   * begins buffer.offset bytes behind that. */
  void* address;
  hetcomm_datatype_t type;
  uint32_t dimensions;
  const uint64_t* shape; /* |dimensions| lengths, slowest first */
} hetcomm_pipeline_tensor_t;

/* One step, as its callback gets it. Everything is valid until the callback returns, and buffers
 * for as long as the head of this file says. */
typedef struct hetcomm_pipeline_action {
  size_t struct_size;
  int32_t kind;         /* one of HETCOMM_PIPELINE_* */
  uint32_t chunk;       /* number of the stage among those of this rank */
  uint32_t stage;       /* number of the stage in the pipeline */
  uint32_t micro_batch; /* 0 for kinds without one */
  /* No other activation of this rank, of any chunk or micro-batch, has this number at the same
   * time. It is below the |slots| of hetcomm_pipeline_facts_t. The trainer may keep what a backward
   * step needs under this number, such as a copy of an output. */
  uint32_t slot;
  uint32_t flags; /* flags of the run: HETCOMM_PIPELINE_EVALUATE or 0 */
  uint64_t step;  /* number of the training step, as in hetcomm_pipeline_run_options_t */
  /* The length of the micro-batch, one of those in the plan. Shapes follow it. 0: the plan has
   * none, or the kind has no micro-batch. */
  uint64_t length;
  /* Tensors of all boundaries that lead to the stage, in the order of the plan. Read by all kinds
   * with a micro-batch. */
  const hetcomm_pipeline_tensor_t* inputs;
  size_t input_count;
  /* Tensors of all boundaries that leave the stage. Written by FORWARD. Other kinds get none. */
  const hetcomm_pipeline_tensor_t* outputs;
  size_t output_count;
  /* Gradients of the outputs that have one. Read by BACKWARD, INPUT_GRAD and WEIGHT_GRAD. Other
   * kinds get none. */
  const hetcomm_pipeline_tensor_t* output_grads;
  size_t output_grad_count;
  /* Gradients of the inputs that have one. Written by BACKWARD and INPUT_GRAD. Other kinds get
   * none. */
  const hetcomm_pipeline_tensor_t* input_grads;
  size_t input_grad_count;
  /* The stream of the options. The callback may return before its work in this stream has ended. */
  hetcomm_stream_t* stream;
  /* A callback that fails may write its reason here, with a closing NUL. */
  char* reason;
  size_t reason_capacity;
} hetcomm_pipeline_action_t;

/* Performs a step. Returns HETCOMM_OK, or the negative status with which the run ends on this rank.
 * Any other value counts as INTERNAL. So do BUSY and INVALID_ARGUMENT, since they say that a run
 * has not begun. The texts on all ranks include the |reason| that the function writes. It may call
 * hetcomm, but not run or destroy this pipeline. It must not throw. */
typedef hetcomm_status_t (*hetcomm_pipeline_function_t)(void* user_data,
                                                        const hetcomm_pipeline_action_t* action);

typedef struct hetcomm_pipeline_callback {
  hetcomm_pipeline_function_t function; /* NULL: there is none */
  void* user_data;
} hetcomm_pipeline_callback_t;

/* The callbacks of a chunk. Every kind of step in the schedule needs its callback, but
 * |reduce_grad|, |unshard| and |reshard| may be NULL and are then left out. If the rank has named
 * gradients (hetcomm_pipeline_set_gradients) and the schedule has no step for |reduce_grad|, the
 * pipeline calls |reduce_grad| after the last step that changes the stage's gradients. Callbacks
 * and their |user_data| have to live until the pipeline is destroyed. */
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

/* Performs two steps that may overlap, in any order or at the same time. The schedule dualpipe-v
 * has such pairs, and actions like "(0F7;7B3)OVERLAP_F_B". */
typedef hetcomm_status_t (*hetcomm_pipeline_pair_t)(void* user_data,
                                                    const hetcomm_pipeline_action_t* first,
                                                    const hetcomm_pipeline_action_t* second);

typedef struct hetcomm_pipeline_options {
  /* The caller sets it to sizeof(hetcomm_pipeline_options_t). */
  size_t struct_size;
  /* Longest time that the creation waits until all ranks have called it. 0: HETCOMM_TIMEOUT. Later
   * waits of the creation always use HETCOMM_TIMEOUT. */
  uint64_t timeout_ns;
  /* The callbacks work in this stream: data leaves when the stream has come to the end of the step
   * that made it. The stream belongs to the device of this rank in the plan, and has the flag
   * HETCOMM_STREAM_NOT_HELD. It has to live until the pipeline is destroyed. NULL: a step's work
   * has ended when its callback returns. */
  hetcomm_stream_t* stream;
  /* Called for the pairs of a schedule. NULL: their steps run one after the other. */
  hetcomm_pipeline_pair_t pair;
  void* pair_user_data;
} hetcomm_pipeline_options_t;

/* Creates a pipeline. Collective over |communicator|: all ranks call it with the same plan, and the
 * call waits for all. If it fails on one rank it fails on all. |plan| is the text of a JSON
 * document, not the name of a file. Its ranks are those of |communicator|. |chunks| has an entry
 * for each stage of this rank, in the order of the stages. |options| may be NULL. |communicator|
 * has to live until the pipeline is destroyed.
 *   INVALID_ARGUMENT  |plan| is malformed or not sound, is for another number of ranks, or a
 *                     callback is missing for a step of the schedule. The text names the entry, or
 *                     the rank and the step.
 *   MISMATCH          The ranks have different plans; the text names two of them.
 *   ABORTED           Another rank failed; the text has its rank, status and reason.
 *   UNSUPPORTED       |plan| is of another version.
 *   NOT_FOUND         There is no schedule of the name that |plan| gives.
 *   TIMED_OUT         A rank did not call in time. The collective operations of |communicator| have
 *                     then failed, too; after other errors of this list it can be used again.
 *   OUT_OF_RANGE      A stage would keep more activations than its limit, or this rank has no such
 *                     device.
 * Other errors are those of hetcomm_communicator_split(), hetcomm_memory_allocate() and
 * hetcomm_reshard_create(). One thread at a time may use |communicator| in this call. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_create(
    hetcomm_communicator_t* communicator, const char* plan, const hetcomm_pipeline_chunk_t* chunks,
    size_t chunk_count, const hetcomm_pipeline_options_t* options,
    hetcomm_pipeline_t** out_pipeline) HETCOMM_NOEXCEPT;

/* Asks whether a run that waits shall go on. */
typedef hetcomm_status_t (*hetcomm_pipeline_interrupt_t)(void* user_data);

typedef struct hetcomm_pipeline_run_options {
  /* The caller sets it to sizeof(hetcomm_pipeline_run_options_t). */
  size_t struct_size;
  /* The number of the training step, the same on all ranks: if they differ, the run ends with
   * MISMATCH on a rank that notices. */
  uint64_t step;
  /* Time limit of the run. A step that runs is not broken off. 0: the run has no limit, but each
   * wait for the data of a step, or at the end for the other ranks, takes at most
   * HETCOMM_TIMEOUT. */
  uint64_t timeout_ns;
  uint32_t flags; /* HETCOMM_PIPELINE_EVALUATE or 0, the same on all ranks, else MISMATCH */
  uint32_t reserved;
  /* The lengths of the micro-batches of this rank's pipeline, each one of the plan's. NULL: this
   * rank does not know them, or the plan has none. If the plan has lengths, at least one rank of
   * the pipeline has to tell them, and all ranks wait for each other at the beginning of the run.
   * Read during the call. */
  const uint64_t* lengths;
  size_t length_count; /* the number of micro-batches */
  /* Called about every 50 ms while the run waits for other ranks, by the calling thread. If it
   * returns a negative status, such as because the user wants to stop, the run ends on all ranks as
   * after a callback that failed. Any other value but HETCOMM_OK counts as INTERNAL. The function
   * must not run or destroy this pipeline, and must not throw. NULL: nobody is asked. */
  hetcomm_pipeline_interrupt_t interrupt;
  void* interrupt_user_data;
} hetcomm_pipeline_run_options_t;

/* Performs this rank's steps, and waits until all ranks have performed theirs. Every rank calls it.
 * |options| may be NULL. The status says how the run ended on this rank; see the head of this
 * file. BUSY: a run is under way. With BUSY, and with INVALID_ARGUMENT for |options|, no run has
 * begun, and the other ranks wait for this one. |options| are wrong if they have an unknown flag or
 * length, or lengths for another number of micro-batches. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_run(
    hetcomm_pipeline_t* pipeline, const hetcomm_pipeline_run_options_t* options) HETCOMM_NOEXCEPT;

/* Replaces the plan between two runs by |plan|, which may have other schedules, limits of
 * activations, and settings of boundaries (strategy, items in flight, slices). Collective: every
 * rank calls it with the same plan. hetcomm_pipeline_create() must have been given the callbacks
 * that the new schedule needs. |timeout_ns| is as in hetcomm_pipeline_options_t. Errors are those
 * of hetcomm_pipeline_create(), and BUSY. If a rank is lost or does not call in time, the pipeline
 * ends on all ranks. After any other failure it keeps its old plan. Until the next run there is no
 * trace. During the call there are buffers for both plans. Work in the stream of the options may
 * still use the buffers of the last run: wait for that work before the call. [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_set_schedule(
    hetcomm_pipeline_t* pipeline, const char* plan, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* The gradient of a tensor of weights, as this rank holds it. */
typedef struct hetcomm_pipeline_gradient {
  /* The caller sets it to sizeof(hetcomm_pipeline_gradient_t) in the first entry. */
  size_t struct_size;
  uint32_t item;  /* number of the model's item, which a stage of this rank has or shares */
  uint32_t index; /* number that tells the tensor from others of the item, alike on all ranks */
  /* Says how the ranks of the stage hold the tensor, by their ranks in the communicator of
   * hetcomm_pipeline_create(). Ranks whose gradients are added, such as those of a data degree,
   * have different terms (HETCOMM_PLACEMENT_PARTIAL). Ranks that hold the same elements are
   * replicas (HETCOMM_PLACEMENT_REPLICATE). Other stages and pipelines may cut the tensor
   * otherwise. Read during the call. */
  const hetcomm_layout_t* layout;
  /* Valid until the gradients are replaced or the pipeline is destroyed. A plain pointer may also
   * lead to memory of a device, as for hetcomm_buffer_pointer(). */
  hetcomm_buffer_t buffer;
  hetcomm_datatype_t type;
  uint32_t reserved;
} hetcomm_pipeline_gradient_t;

/* Names the gradients that runs add up from now on, instead of those named before. Collective: all
 * ranks call it. All ranks that hold an item name all of its tensors, even a tensor of which they
 * hold nothing. A |count| of 0 names none.
 *
 * In each run but an evaluation the pipeline reads the buffers of a stage. It does so when the
 * stage has performed its last step that changes gradients, and its callback |reduce_grad|. At the
 * end of the run each buffer holds the sum over all ranks that hold the same elements. The sum
 * covers the terms of a stage, the stages that share the item, and all pipelines. Nothing is added
 * if the plan has no backward steps. Ranks that hold copies get sums that were formed in the same
 * order, and with most networks the same bits. A rank with a stream in its options needs the
 * callback |reduce_grad|, and waits there for its stream. A rank that holds an item in two stages
 * adds the gradients of both first, and names their sum once.
 *   INVALID_ARGUMENT  A rank does not hold the item, a buffer is too short, or ranks disagree about
 *                     a tensor. The text names the rank, the item and the tensor.
 * |timeout_ns| and other errors are as for hetcomm_pipeline_set_schedule(). [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_set_gradients(
    hetcomm_pipeline_t* pipeline, const hetcomm_pipeline_gradient_t* gradients, size_t count,
    uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Figures of all ranks together. */
typedef struct hetcomm_pipeline_totals {
  /* The caller sets it to sizeof(hetcomm_pipeline_totals_t). */
  size_t struct_size;
  /* The caller sets it, alike on all ranks. 2: the Euclidean norm. INFINITY: the greatest absolute
   * value. Another number p above 0: the p-norm. 0: no norm, and |norm| and |has_nonfinite| become
   * 0. */
  double norm_type;
  /* The norm of the gradients that hetcomm_pipeline_set_gradients() names, as their buffers hold
   * them now. Each element of the model counts once, however many ranks hold it. */
  double norm;
  /* 1: an element of the gradients is infinite or no number. The norm of finite elements may be
   * infinite, too. */
  int32_t has_nonfinite;
  int32_t reserved;
} hetcomm_pipeline_totals_t;

/* Replaces each of |count| |values|, such as losses and numbers of tokens, by its sum over all
 * ranks. Also fills |totals| unless that is NULL. |count| is at most 4096. All ranks add in the
 * same order. Collective: every rank makes the call between two runs, with the same |count|. Work
 * of streams on the gradients must have ended. If the call fails, |values| are as before.
 *   INVALID_ARGUMENT  |values| is NULL, |count| is too large, or a field of |totals| is wrong; the
 *                     other ranks get ABORTED.
 *   MISMATCH          Ranks ask for different figures.
 * |timeout_ns| and other errors are as for hetcomm_pipeline_set_schedule(). [serial] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_pipeline_total(hetcomm_pipeline_t* pipeline, double* values, size_t count,
                       hetcomm_pipeline_totals_t* totals, uint64_t timeout_ns) HETCOMM_NOEXCEPT;

/* Ends the run that is under way, on all ranks. If no run is under way, for instance because it has
 * just ended, the call ends the next one. The run ends with CANCELLED on this rank, and with
 * ABORTED and |reason|, which may be NULL, on the others. The pipeline has then ended. Does not
 * wait. May be called from a callback. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_pipeline_cancel(hetcomm_pipeline_t* pipeline, const char* reason) HETCOMM_NOEXCEPT;

/* Figures of this rank. Counts and times are sums over all runs, also over those that failed;
 * bytes, slots and chunks are those of the plan and the gradients that are in use. */
typedef struct hetcomm_pipeline_facts_t {
  /* The caller sets it to sizeof(hetcomm_pipeline_facts_t). */
  size_t struct_size;
  uint64_t runs;      /* runs that have ended well */
  uint64_t callbacks; /* callbacks that were called */
  uint64_t callback_ns;
  uint64_t data_wait_ns; /* waiting for inputs and gradients */
  uint64_t room_wait_ns; /* waiting until an earlier item has left its buffer */
  uint64_t end_wait_ns;  /* waiting for the other ranks at the end of runs */
  uint64_t buffer_bytes; /* memory of the boundaries' buffers, and of gradients that are packed */
  uint32_t slots;        /* activations that live at a time */
  uint32_t chunks;       /* stages of this rank */
} hetcomm_pipeline_facts_t;

/* Writes the figures to |*out_facts|, as many as struct_size has room for. BUSY: a run is under
 * way. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t hetcomm_pipeline_facts(
    hetcomm_pipeline_t* pipeline, hetcomm_pipeline_facts_t* out_facts) HETCOMM_NOEXCEPT;

/* Formats of a trace. */
enum {
  HETCOMM_PIPELINE_TRACE_JSON = 0,  /* the steps with their times in nanoseconds */
  HETCOMM_PIPELINE_TRACE_CHROME = 1 /* for chrome://tracing or Perfetto */
};

/* Writes when each step of this rank's last run began and ended, and how long it waited before, in
 * |format|. Times count from the beginning of the run on this rank, which differs from rank to
 * rank. After a run that failed, the trace has the steps up to the failure. A run that failed
 * before its first step leaves the last trace as it is. NOT_FOUND: there was no run. BUSY: a run is
 * under way. INVALID_ARGUMENT: there is no such format. [any-thread] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_pipeline_trace(hetcomm_pipeline_t* pipeline, int32_t format, size_t capacity,
                       char* out_text, size_t* out_size) HETCOMM_NOEXCEPT;

/* Destroys the pipeline. Work in the stream of the options may still use its buffers: wait for the
 * stream before, also after a run that failed. Later runs of the other ranks fail. Ranks that
 * exchange data with this one, and then their partners, get ABORTED. Other ranks fail at their time
 * limit. BUSY: a run is under way; then nothing has changed. NULL is accepted. [exclusive] */
HETCOMM_NODISCARD HETCOMM_API hetcomm_status_t
hetcomm_pipeline_destroy(hetcomm_pipeline_t* pipeline) HETCOMM_NOEXCEPT;

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* HETCOMM_PIPELINE_H_ */
