// Runs the loops over UCX's tagged messages and its remote memory access. The two processes connect
// to each other to exchange worker addresses and keys.
#include <cstring>
#include <ucp/api/ucp.h>
#include <vector>

#include "bench/peers/meeting.h"
#include "bench/peers/runner.h"

namespace bench {
namespace {

void check(ucs_status_t status, const char* call) {
  if (status != UCS_OK) die("%s: %s", call, ucs_status_string(status));
}

class UcxBackend : public HostBuffers {
 public:
  bool take_word(std::string_view word) {
    std::string_view name;
    if (bench::take_word(word, "meeting", &name)) meeting_name_ = name;
    return !name.empty() || take_integer(word, "rank", &rank_);
  }

  void start(const Workload& workload) {
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_TAG;
    if (is_one_sided(workload.test)) parameters.features |= UCP_FEATURE_RMA | UCP_FEATURE_AMO64;
    ucp_config_t* config = nullptr;
    check(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    check(ucp_init(&parameters, config, &context_), "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t worker_parameters{};
    worker_parameters.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_parameters.thread_mode = UCS_THREAD_MODE_SINGLE;
    check(ucp_worker_create(context_, &worker_parameters, &worker_), "ucp_worker_create");
    connect();
  }

  void stop() {
    hide();
    ucp_request_param_t flush{};
    finish(ucp_ep_close_nbx(endpoint_, &flush));
    // The peer may need this worker's progress until it has closed its endpoint.
    meeting_.leave();
    while (!meeting_.peer_has_left()) ucp_worker_progress(worker_);
    ucp_worker_destroy(worker_);
    ucp_cleanup(context_);
  }

  int rank() const { return rank_; }
  int ranks() const { return 2; }
  std::string path() const { return ""; }

  void prepare(uint64_t bytes, int slots) {
    HostBuffers::prepare(bytes, slots);
    requests_.clear();
    requests_.reserve(static_cast<size_t>(slots) * 2);
  }

  void send(int, int slot) { finish(post_send(send_slot(slot), bytes(), kData)); }
  void receive(int, int slot) { finish(post_receive(receive_slot(slot), bytes(), kData)); }
  void start_send(int, int slot) { keep(post_send(send_slot(slot), bytes(), kData)); }
  void start_receive(int, int slot) { keep(post_receive(receive_slot(slot), bytes(), kData)); }
  void wait_all() {
    for (void* request : requests_) finish(request);
    requests_.clear();
  }
  void send_word(int, double value) { finish(post_send(&value, sizeof value, kWord)); }
  double receive_word(int) {
    double value = 0;
    finish(post_receive(&value, sizeof value, kWord));
    return value;
  }

  // --- one-sided

  static constexpr bool kOneSided = true;
  static constexpr bool kNotifies = false;

  // Uses memory that UCX allocates, so that peers on this host can map it.
  void expose(uint64_t bytes, int slots, Exposed exposed) {
    hide();
    ucp_mem_map_params_t parameters{};
    parameters.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    parameters.length = static_cast<size_t>(SlotMemory::size(bytes, slots));
    parameters.flags = UCP_MEM_MAP_ALLOCATE;
    check(ucp_mem_map(context_, &parameters, &memory_), "ucp_mem_map");
    ucp_mem_attr_t attributes{};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS;
    check(ucp_mem_query(memory_, &attributes), "ucp_mem_query");
    HostBuffers::prepare(bytes, slots, exposed, attributes.address);
    requests_.reserve(static_cast<size_t>(slots));
    previous_.assign(static_cast<size_t>(slots), 0);
    exchange_keys(attributes.address);
  }
  void put(int slot) { start_put(slot); }
  void start_put(int slot) {
    ucp_request_param_t plain{};
    keep(ucp_put_nbx(endpoint_, send_slot(slot), bytes(), remote(slot), key_, &plain));
  }
  void start_get(int slot) {
    ucp_request_param_t plain{};
    keep(ucp_get_nbx(endpoint_, receive_slot(slot), bytes(), remote(slot), key_, &plain));
  }
  void start_add(int slot) {
    ucp_request_param_t fetching{};
    fetching.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | UCP_OP_ATTR_FIELD_REPLY_BUFFER;
    fetching.datatype = ucp_dt_make_contig(sizeof(uint64_t));
    fetching.reply_buffer = &previous_[static_cast<size_t>(slot)];
    static const uint64_t kOne = 1;
    keep(ucp_atomic_op_nbx(endpoint_, UCP_ATOMIC_OP_ADD, &kOne, 1, remote(slot), key_, &fetching));
  }
  uint64_t previous(int slot) const { return previous_[static_cast<size_t>(slot)]; }
  void reap() { wait_all(); }
  void finish() {
    wait_all();
    ucp_request_param_t plain{};
    finish(ucp_ep_flush_nbx(endpoint_, &plain));
  }
  void progress() { ucp_worker_progress(worker_); }

 private:
  static constexpr ucp_tag_t kData = 1;
  static constexpr ucp_tag_t kWord = 2;
  static constexpr ucp_tag_t kAllBits = ~ucp_tag_t{0};

  void connect() {
    ucp_address_t* address = nullptr;
    size_t length = 0;
    check(ucp_worker_get_address(worker_, &address, &length), "ucp_worker_get_address");
    meeting_.open(meeting_name_, rank_);
    meeting_.send(address, length);
    ucp_worker_release_address(worker_, address);
    std::vector<char> peer = meeting_.receive();
    ucp_ep_params_t parameters{};
    parameters.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    parameters.address = reinterpret_cast<ucp_address_t*>(peer.data());
    check(ucp_ep_create(worker_, &parameters, &endpoint_), "ucp_ep_create");
  }

  uint64_t remote(int slot) const {
    return remote_ + SlotMemory::stride(bytes()) * static_cast<uint64_t>(slot);
  }

  // Exchanges the key and the address of the exposed memory with the peer.
  void exchange_keys(void* address) {
    void* packed = nullptr;
    size_t size = 0;
    check(ucp_rkey_pack(context_, memory_, &packed, &size), "ucp_rkey_pack");
    meeting_.send(packed, size);
    meeting_.send(&address, sizeof address);
    ucp_rkey_buffer_release(packed);
    const std::vector<char> peer_key = meeting_.receive();
    const std::vector<char> peer_address = meeting_.receive();
    std::memcpy(&remote_, peer_address.data(), sizeof remote_);
    check(ucp_ep_rkey_unpack(endpoint_, peer_key.data(), &key_), "ucp_ep_rkey_unpack");
  }

  // Releases the exposed memory. Both ranks call this together, so that neither frees memory that
  // the other may still write.
  void hide() {
    if (memory_ == nullptr) return;
    finish();
    send_word(1 - rank_, 0);
    receive_word(1 - rank_);
    HostBuffers::give_back();
    ucp_rkey_destroy(key_);
    check(ucp_mem_unmap(context_, memory_), "ucp_mem_unmap");
    memory_ = nullptr;
  }

  void* post_send(const void* data, uint64_t length, ucp_tag_t tag) {
    ucp_request_param_t plain{};
    return ucp_tag_send_nbx(endpoint_, data, static_cast<size_t>(length), tag, &plain);
  }
  void* post_receive(void* data, uint64_t length, ucp_tag_t tag) {
    ucp_request_param_t plain{};
    return ucp_tag_recv_nbx(worker_, data, static_cast<size_t>(length), tag, kAllBits, &plain);
  }

  // Keeps |request| for wait_all(). A null request belongs to an operation that has completed.
  void keep(void* request) {
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "operation");
    if (request != nullptr) requests_.push_back(request);
  }
  void finish(void* request) {
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "operation");
    if (request == nullptr) return;
    ucs_status_t status = ucp_request_check_status(request);
    while (status == UCS_INPROGRESS) {
      ucp_worker_progress(worker_);
      status = ucp_request_check_status(request);
    }
    check(status, "operation");
    ucp_request_free(request);
  }

  int rank_ = 0;
  std::string meeting_name_;
  Meeting meeting_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::vector<void*> requests_;
  ucp_mem_h memory_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  uint64_t remote_ = 0;
  std::vector<uint64_t> previous_;
};

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::UcxBackend backend;
  return bench::run_backend(backend, argc, argv);
}
