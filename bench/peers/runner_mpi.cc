// Runs the loops over MPI. MPI's launcher starts this program, and determines rank and placement.
//
// The next two lines exclude MPI's C++ bindings, which some releases still contain. They need an
// additional library.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstring>
#include <vector>

#include "bench/peers/runner.h"

namespace bench {
namespace {

class MpiBackend : public HostBuffers {
 public:
  bool take_word(const char*) { return false; }

  void start(const Workload&) {
    MPI_Init(nullptr, nullptr);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  void stop() { MPI_Finalize(); }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  std::string path() const { return ""; }

  void prepare(uint64_t bytes, int slots) {
    HostBuffers::prepare(bytes, slots);
    length_ = static_cast<int>(bytes);
    requests_.clear();
    requests_.reserve(static_cast<size_t>(slots) * 2);
  }

  // The default error handler terminates the job, so results are not checked.
  void send(int peer, int slot) {
    MPI_Send(send_slot(slot), length_, MPI_BYTE, peer, kData, MPI_COMM_WORLD);
  }
  void receive(int peer, int slot) {
    MPI_Recv(receive_slot(slot), length_, MPI_BYTE, peer, kData, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  void start_send(int peer, int slot) {
    MPI_Isend(send_slot(slot), length_, MPI_BYTE, peer, kData, MPI_COMM_WORLD, next_request());
  }
  void start_receive(int peer, int slot) {
    MPI_Irecv(receive_slot(slot), length_, MPI_BYTE, peer, kData, MPI_COMM_WORLD, next_request());
  }
  void wait_all() {
    MPI_Waitall(static_cast<int>(requests_.size()), requests_.data(), MPI_STATUSES_IGNORE);
    requests_.clear();
  }
  static constexpr bool kCollectives = true;

  void prepare_collective(Collective operation, uint64_t bytes) {
    prepare(bytes, 1);
    operation_ = operation;
    count_ = static_cast<int>(bytes / sizeof(float));
    part_ = count_ / ranks_;
  }
  void run_collective(bool in_place) {
    uint8_t* const out = receive_slot(0);
    uint8_t* const in = send_slot(0);
    const MPI_Comm all = MPI_COMM_WORLD;
    switch (operation_) {
      case Collective::kBarrier:
        MPI_Barrier(all);
        break;
      case Collective::kBroadcast:
        MPI_Bcast(out, count_, MPI_FLOAT, 0, all);
        break;
      case Collective::kReduce:
        MPI_Reduce(in, out, count_, MPI_FLOAT, MPI_SUM, 0, all);
        break;
      case Collective::kAllreduce:
        MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, count_, MPI_FLOAT, MPI_SUM, all);
        break;
      case Collective::kAllgather:
        MPI_Allgather(in_place ? MPI_IN_PLACE : in, part_, MPI_FLOAT, out, part_, MPI_FLOAT, all);
        break;
      case Collective::kReduceScatter:
        reduce_scatter(in_place);
        break;
      case Collective::kAlltoall:
        MPI_Alltoall(in, part_, MPI_FLOAT, out, part_, MPI_FLOAT, all);
        break;
    }
  }
  void send_word(int peer, double value) {
    MPI_Send(&value, 1, MPI_DOUBLE, peer, kWord, MPI_COMM_WORLD);
  }
  double receive_word(int peer) {
    double value = 0;
    MPI_Recv(&value, 1, MPI_DOUBLE, peer, kWord, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return value;
  }

 private:
  // In place, MPI leaves the result at the beginning of the buffer. The loops expect it at this
  // rank's part.
  void reduce_scatter(bool in_place) {
    uint8_t* const in = send_slot(0);
    if (!in_place) {
      MPI_Reduce_scatter_block(in, receive_slot(0), part_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      return;
    }
    MPI_Reduce_scatter_block(MPI_IN_PLACE, in, part_, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    const size_t bytes = static_cast<size_t>(part_) * sizeof(float);
    if (rank_ != 0 && bytes > 0) std::memcpy(in + static_cast<size_t>(rank_) * bytes, in, bytes);
  }

  static constexpr int kData = 1;
  static constexpr int kWord = 2;

  // Space was reserved for all requests, so the array does not move.
  MPI_Request* next_request() { return &requests_.emplace_back(); }

  int rank_ = 0;
  int ranks_ = 1;
  int length_ = 0;
  Collective operation_ = Collective::kBarrier;
  int count_ = 0;
  int part_ = 0;
  std::vector<MPI_Request> requests_;
};

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::MpiBackend backend;
  return bench::run_backend(backend, argc, argv);
}
