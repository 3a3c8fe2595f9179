// A job as users launch it: mpirun, the MPI bootstrap, every pair of ranks. Proves:
//  - every size around the protocols' boundaries arrives whole, from and into host, handle and
//    address devices in any mix;
//  - messages match their receives in any order of posting;
//  - thousands of outstanding requests complete;
//  - the job ends cleanly on all ranks.
#include <mpi.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <hetcomm/hetcomm.h>
#include <hetcomm/mpi.h>

namespace {

int g_rank = -1;

void check(hetcomm_status_t status, const char* what) {
  if (status == HETCOMM_OK) return;
  std::fprintf(stderr, "rank %d: %s: %s: %s\n", g_rank, what, hetcomm_status_name(status),
               hetcomm_last_error());
  std::fflush(stderr);
  _exit(1);
}
#define CHECK(call) check((call), #call)

unsigned char pattern(int source, int destination, uint64_t tag, size_t i) {
  return static_cast<unsigned char>(i * 7 + (i >> 8) * 13 + static_cast<size_t>(source) * 31 +
                                    static_cast<size_t>(destination) * 17 + tag * 3);
}

// One buffer of a kind (0 host, 1 and 2 the simulated devices) whose bytes can be filled and
// checked.
class Buffer {
 public:
  Buffer(hetcomm_context_t* context, int kind, size_t size) : bytes_(size + 1) {
    if (kind != 0) CHECK(hetcomm_memory_allocate(context, kind, size + 1, &memory_));
  }
  ~Buffer() { CHECK(hetcomm_memory_destroy(memory_)); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void fill(int source, int destination, uint64_t tag) {
    for (size_t i = 0; i < size(); ++i) bytes_[i] = pattern(source, destination, tag, i);
    if (memory_ != nullptr) CHECK(hetcomm_memory_write(memory_, 0, bytes_.data(), size()));
  }
  void verify(int source, int destination, uint64_t tag) {
    if (memory_ != nullptr) CHECK(hetcomm_memory_read(memory_, 0, bytes_.data(), size()));
    for (size_t i = 0; i < size(); ++i) {
      if (bytes_[i] == pattern(source, destination, tag, i)) continue;
      std::fprintf(stderr, "rank %d: wrong byte %zu of %zu from rank %d, tag %lu\n", g_rank, i,
                   size(), source, static_cast<unsigned long>(tag));
      _exit(1);
    }
  }
  hetcomm_buffer_t view() const {
    return memory_ != nullptr ? hetcomm_buffer_memory(memory_, 0, size())
                              : hetcomm_buffer_host(bytes_.data(), size());
  }

 private:
  size_t size() const { return bytes_.size() - 1; }
  std::vector<unsigned char> bytes_;
  hetcomm_memory_t* memory_ = nullptr;
};

void wait_ok(hetcomm_request_t* request) {
  hetcomm_completion_t completion;
  CHECK(hetcomm_request_wait(request, HETCOMM_TIMEOUT_DEFAULT, &completion));
  if (completion.status == HETCOMM_OK) return;
  std::fprintf(stderr, "rank %d: %s: %s\n", g_rank, hetcomm_status_name(completion.status),
               completion.text);
  _exit(1);
}

// Every rank sends every size to every rank, with mixed kinds of memory.
void exchange_sizes(hetcomm_context_t* context, hetcomm_communicator_t* world, int size) {
  const size_t sizes[] = {0,     1,     24,     25,     88,     89,      4096,
                          16384, 16385, 131072, 131073, 600000, 1 << 20, (3 << 20) + 5};
  uint64_t tag = 0;
  for (const size_t bytes : sizes) {
    ++tag;
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<hetcomm_request_t*> requests;
    for (int peer = 0; peer < size; ++peer) {
      const int kind = static_cast<int>((tag + static_cast<uint64_t>(peer + g_rank * 2)) % 3);
      buffers.push_back(std::make_unique<Buffer>(context, kind, bytes));
      hetcomm_request_t* request = nullptr;
      CHECK(hetcomm_recv(world, peer, tag, HETCOMM_EXACT_TAG, buffers.back()->view(), nullptr,
                         &request));
      requests.push_back(request);
    }
    for (int step = 0; step < size; ++step) {
      const int peer = (g_rank + step) % size;
      buffers.push_back(std::make_unique<Buffer>(context, (peer + step) % 3, bytes));
      buffers.back()->fill(g_rank, peer, tag);
      hetcomm_request_t* request = nullptr;
      CHECK(hetcomm_send(world, peer, tag, buffers.back()->view(), nullptr, &request));
      requests.push_back(request);
    }
    for (hetcomm_request_t* request : requests) wait_ok(request);
    for (int peer = 0; peer < size; ++peer) {
      buffers[static_cast<size_t>(peer)]->verify(peer, g_rank, tag);
    }
  }
}

// Receives are posted in the reverse order of the sends, all outstanding at once.
void exchange_backwards(hetcomm_communicator_t* world, int size, int count) {
  const auto bytes_of = [](int i) { return static_cast<size_t>(i * 37 % 2000); };
  std::vector<std::vector<unsigned char>> data;
  std::vector<hetcomm_request_t*> requests;
  for (int i = 0; i < count; ++i) {
    for (int peer = 0; peer < size; ++peer) {
      const uint64_t tag = 1000 + static_cast<uint64_t>(i);
      std::vector<unsigned char>& out = data.emplace_back(bytes_of(i) + 1);
      for (size_t k = 0; k < bytes_of(i); ++k) out[k] = pattern(g_rank, peer, tag, k);
      CHECK(hetcomm_send(world, peer, tag, hetcomm_buffer_host(out.data(), bytes_of(i)), nullptr,
                         &requests.emplace_back()));
    }
  }
  const size_t first = data.size();
  for (int i = count; i-- > 0;) {
    for (int peer = 0; peer < size; ++peer) {
      std::vector<unsigned char>& in = data.emplace_back(bytes_of(i) + 1);
      CHECK(hetcomm_recv(world, peer, 1000 + static_cast<uint64_t>(i), HETCOMM_EXACT_TAG,
                         hetcomm_buffer_host(in.data(), bytes_of(i)), nullptr,
                         &requests.emplace_back()));
    }
  }
  for (hetcomm_request_t* request : requests) wait_ok(request);
  size_t at = first;
  for (int i = count; i-- > 0;) {
    for (int peer = 0; peer < size; ++peer, ++at) {
      for (size_t k = 0; k < bytes_of(i); ++k) {
        if (data[at][k] == pattern(peer, g_rank, 1000 + static_cast<uint64_t>(i), k)) continue;
        std::fprintf(stderr, "rank %d: wrong byte in backwards exchange\n", g_rank);
        _exit(1);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  alarm(150);
  MPI_Init(&argc, &argv);
  hetcomm_context_options_t options{};
  options.struct_size = sizeof(options);
  options.settings = "DEVICES=sim-handle,sim-address;STAGING_CHUNK=64K";
  hetcomm_context_t* context = nullptr;
  hetcomm_bootstrap_t* bootstrap = nullptr;
  hetcomm_communicator_t* world = nullptr;
  CHECK(hetcomm_context_create(&options, &context));
  CHECK(hetcomm_bootstrap_create_from_mpi(context, MPI_COMM_WORLD, &bootstrap));
  CHECK(hetcomm_communicator_create(context, bootstrap, nullptr, &world));
  int size = 0;
  CHECK(hetcomm_communicator_rank(world, &g_rank, &size));
  const int count = argc > 1 ? std::atoi(argv[1]) : 500;
  exchange_sizes(context, world, size);
  exchange_backwards(world, size, count);
  CHECK(hetcomm_communicator_barrier(world, 0));
  CHECK(hetcomm_communicator_destroy(world));
  hetcomm_bootstrap_destroy(bootstrap);
  CHECK(hetcomm_context_destroy(context));
  MPI_Finalize();
  if (g_rank == 0) std::printf("%d ranks ok\n", size);
  return 0;
}
