// The loops over UCX's tagged messages. Two processes, which meet to exchange worker addresses.
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

  void start() {
    ucp_params_t parameters{};
    parameters.field_mask = UCP_PARAM_FIELD_FEATURES;
    parameters.features = UCP_FEATURE_TAG;
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
    ucp_request_param_t flush{};
    finish(ucp_ep_close_nbx(endpoint_, &flush));
    // The peer may need this worker's progress until it has closed its end.
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

  void* post_send(const void* data, uint64_t length, ucp_tag_t tag) {
    ucp_request_param_t plain{};
    return ucp_tag_send_nbx(endpoint_, data, static_cast<size_t>(length), tag, &plain);
  }
  void* post_receive(void* data, uint64_t length, ucp_tag_t tag) {
    ucp_request_param_t plain{};
    return ucp_tag_recv_nbx(worker_, data, static_cast<size_t>(length), tag, kAllBits, &plain);
  }

  // nullptr: done at once, with no request.
  void keep(void* request) {
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "tagged message");
    if (request != nullptr) requests_.push_back(request);
  }
  void finish(void* request) {
    if (UCS_PTR_IS_ERR(request)) check(UCS_PTR_STATUS(request), "tagged message");
    if (request == nullptr) return;
    ucs_status_t status = ucp_request_check_status(request);
    while (status == UCS_INPROGRESS) {
      ucp_worker_progress(worker_);
      status = ucp_request_check_status(request);
    }
    check(status, "tagged message");
    ucp_request_free(request);
  }

  int rank_ = 0;
  std::string meeting_name_;
  Meeting meeting_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  std::vector<void*> requests_;
};

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  bench::UcxBackend backend;
  return bench::run_backend(backend, argc, argv);
}
