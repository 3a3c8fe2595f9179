// libhetcomm_mpi bootstraps over an MPI communicator, using the public callbacks of libhetcomm.
//
// All traffic uses a duplicate of the caller's communicator, so it never mixes with the caller's
// traffic. The duplicate is stored as an attribute of the original, so it is freed when the caller
// frees the original. The bootstrap itself therefore owns no MPI object and can be destroyed at any
// time, even after MPI_Finalize.
#include <poll.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include <hetcomm/mpi.h>

namespace {

// MPI_Comm is a pointer in some MPI implementations and an int in others. Both fit into a
// callback's user data.
static_assert(sizeof(MPI_Comm) <= sizeof(void*));

void* to_user_data(MPI_Comm comm) {
  void* result = nullptr;
  std::memcpy(&result, &comm, sizeof(comm));
  return result;
}

MPI_Comm to_comm(void* user_data) {
  MPI_Comm comm;
  std::memcpy(&comm, &user_data, sizeof(comm));
  return comm;
}

// Writes the text of a failure to standard error and returns |status|. The text goes there because
// only libhetcomm can set the text of hetcomm_last_error. Nothing is written to a pipe without a
// reader, because SIGPIPE would kill the process.
hetcomm_status_t fail(hetcomm_status_t status, const char* text) {
  pollfd error{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&error, 1, 0) == 1 && (error.revents & POLLERR) != 0) return status;
  std::fprintf(stderr, "hetcomm: error: hetcomm_bootstrap_create_from_mpi: %s\n", text);
  return status;
}

bool is_finalized() {
  int finalized = 0;
  return MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0;
}

extern "C" int free_duplicate(MPI_Comm /*comm*/, int /*keyval*/, void* attribute, void* /*extra*/) {
  // After MPI_Finalize, no MPI object can or need be freed.
  if (is_finalized()) return MPI_SUCCESS;
  MPI_Comm duplicate = to_comm(attribute);
  return MPI_Comm_free(&duplicate);
}

extern "C" hetcomm_status_t allgather(void* user_data, const void* value, size_t size,
                                      void* out_values) {
  if (is_finalized() || size > INT_MAX) return HETCOMM_INVALID_ARGUMENT;
  const int count = static_cast<int>(size);
  const int error =
      MPI_Allgather(value, count, MPI_BYTE, out_values, count, MPI_BYTE, to_comm(user_data));
  return error == MPI_SUCCESS ? HETCOMM_OK : HETCOMM_BOOTSTRAP_FAILED;
}

// Returns a duplicate that exists as long as |comm|, or MPI_COMM_NULL on failure.
MPI_Comm duplicate_of(MPI_Comm comm) {
  MPI_Comm duplicate = MPI_COMM_NULL;
  int keyval = MPI_KEYVAL_INVALID;
  if (MPI_Comm_dup(comm, &duplicate) != MPI_SUCCESS) return MPI_COMM_NULL;
  // Calls that use the duplicate return errors. The caller's own error handler stays in effect for
  // the original communicator.
  MPI_Comm_set_errhandler(duplicate, MPI_ERRORS_RETURN);
  if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, free_duplicate, &keyval, nullptr) ==
      MPI_SUCCESS) {
    const bool attached = MPI_Comm_set_attr(comm, keyval, to_user_data(duplicate)) == MPI_SUCCESS;
    // The key remains valid until its attribute is deleted. This call frees only the handle.
    MPI_Comm_free_keyval(&keyval);
    if (attached) return duplicate;
  }
  MPI_Comm_free(&duplicate);
  return MPI_COMM_NULL;
}

// Returns the number of processes according to the environment variable |name|, or 0 if it is not
// set.
long promised(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? 0 : std::strtol(text, nullptr, 10);
}

// Checks that MPI_COMM_WORLD has as many processes as the launcher started. If a program is linked
// with a different MPI than that of its launcher, each process becomes a separate job of one
// process.
hetcomm_status_t check_launcher() {
  int size = 0;
  if (MPI_Comm_size(MPI_COMM_WORLD, &size) != MPI_SUCCESS) return HETCOMM_BOOTSTRAP_FAILED;
  MPI_Comm parent = MPI_COMM_NULL;
  // Spawned processes inherit the variables of their parent's launch, which do not describe them.
  if (MPI_Comm_get_parent(&parent) == MPI_SUCCESS && parent != MPI_COMM_NULL) return HETCOMM_OK;
  // The first variable that is set decides. SLURM_STEP_NUM_TASKS is checked last, because an mpirun
  // inside an allocation also runs in a step of Slurm, and that variable then counts the tasks of
  // the step.
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MV2_COMM_WORLD_SIZE"}) {
    const long expected = promised(name);
    if (expected <= 0) continue;
    if (expected == size) return HETCOMM_OK;
    char text[512];
    std::snprintf(text, sizeof(text),
                  "%s is %ld, but MPI_COMM_WORLD has %d process(es): the program was linked with "
                  "another MPI than the one whose mpirun started it; use the mpirun that belongs "
                  "to the MPI it was built with",
                  name, expected, size);
    return fail(HETCOMM_INVALID_ARGUMENT, text);
  }
  const long step_tasks = promised("SLURM_STEP_NUM_TASKS");
  if (size == 1 && step_tasks > 1 && std::getenv("SLURM_PROCID") != nullptr) {
    char text[512];
    std::snprintf(text, sizeof(text),
                  "srun started %ld processes, but MPI_COMM_WORLD has only this one: srun and the "
                  "program's MPI do not understand each other; use srun --mpi=pmix (or the one "
                  "that 'srun --mpi=list' and the MPI share), or mpirun",
                  step_tasks);
    return fail(HETCOMM_INVALID_ARGUMENT, text);
  }
  return HETCOMM_OK;
}

}  // namespace

hetcomm_status_t hetcomm_bootstrap_create_from_mpi(hetcomm_context_t* context, MPI_Comm comm,
                                                   hetcomm_bootstrap_t** out_bootstrap) noexcept {
  int initialized = 0;
  if (MPI_Initialized(&initialized) != MPI_SUCCESS || initialized == 0) {
    return fail(HETCOMM_INVALID_ARGUMENT, "MPI_Init was not called");
  }
  if (is_finalized()) return fail(HETCOMM_INVALID_ARGUMENT, "MPI_Finalize was called");
  if (comm == MPI_COMM_NULL) return fail(HETCOMM_INVALID_ARGUMENT, "the communicator is null");
  const hetcomm_status_t launcher = check_launcher();
  if (launcher != HETCOMM_OK) return launcher;

  hetcomm_bootstrap_options_t options{};
  options.struct_size = sizeof(options);
  options.allgather = allgather;
  if (MPI_Comm_rank(comm, &options.rank) != MPI_SUCCESS ||
      MPI_Comm_size(comm, &options.size) != MPI_SUCCESS) {
    return fail(HETCOMM_INVALID_ARGUMENT, "the communicator has no rank and size");
  }
  const MPI_Comm duplicate = duplicate_of(comm);
  if (duplicate == MPI_COMM_NULL) {
    return fail(HETCOMM_BOOTSTRAP_FAILED, "the communicator cannot be duplicated");
  }
  options.user_data = to_user_data(duplicate);
  return hetcomm_bootstrap_create_from_callbacks(context, &options, out_bootstrap);
}
