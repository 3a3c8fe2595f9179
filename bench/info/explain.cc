#include "bench/info/explain.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/info/handles.h"
#include "bench/info/launch.h"

namespace hetcomm_info {
namespace {

constexpr uint64_t kBarrierNs = UINT64_C(30'000'000'000);

struct Explanation {
  int32_t peer;
  std::string text;
};

struct View {
  int32_t rank = 0;
  int32_t size = 0;
  std::vector<Explanation> peers;
};

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown host";
}

// One line of input per line, without empty ones.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

bool explain_peer(hetcomm_communicator_t* communicator, int32_t peer, std::string* out_text) {
  size_t size = 0;
  hetcomm_status_t status = hetcomm_communicator_explain(communicator, peer, 0, nullptr, &size);
  std::vector<char> text;
  // The text may have grown in between: a connection was made.
  while (status == HETCOMM_OK && size > text.size()) {
    text.resize(size);
    status = hetcomm_communicator_explain(communicator, peer, text.size(), text.data(), &size);
  }
  if (status != HETCOMM_OK) {
    report_failure(fmt::format("explain rank {}", peer).c_str(), status);
    return false;
  }
  *out_text = text.empty() ? "" : text.data();
  return true;
}

// A rank that leaves early would be seen as a lost peer by the others.
bool meet(hetcomm_communicator_t* communicator) {
  const hetcomm_status_t status = hetcomm_communicator_barrier(communicator, kBarrierNs);
  if (status != HETCOMM_OK) report_failure("barrier", status);
  return status == HETCOMM_OK;
}

bool collect_view(hetcomm_communicator_t* communicator, std::optional<int32_t> peer, View* view) {
  bool ok = true;
  const int32_t first = peer.value_or(0);
  const int32_t last = peer.has_value() ? *peer : view->size - 1;
  for (int32_t rank = first; rank <= last; ++rank) {
    // Oneself is a peer only where it was asked for, or where there is nobody else.
    if (rank == view->rank && !peer.has_value() && view->size > 1) continue;
    Explanation explanation{.peer = rank, .text = {}};
    if (explain_peer(communicator, rank, &explanation.text)) {
      view->peers.push_back(std::move(explanation));
    } else {
      ok = false;
    }
  }
  return ok;
}

std::string as_text(const View& view) {
  std::string text = fmt::format("rank {} of {} on {}\n", view.rank, view.size, host_name());
  // Each begins with a line that names the peer.
  for (const Explanation& peer : view.peers) {
    for (const std::string& line : lines_of(peer.text)) text += "  " + line + "\n";
  }
  return text;
}

std::string as_json(const View& view) {
  auto peers = nlohmann::ordered_json::array();
  for (const Explanation& peer : view.peers) {
    peers.push_back({{"rank", peer.peer}, {"explanation", lines_of(peer.text)}});
  }
  const nlohmann::ordered_json json = {
      {"rank", view.rank}, {"size", view.size}, {"host", host_name()}, {"peers", peers}};
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

int join(std::optional<int32_t> peer, bool json) {
  const Context context = create_context();
  if (context == nullptr) return kFailure;
  hetcomm_bootstrap_t* new_bootstrap = nullptr;
  hetcomm_status_t status =
      hetcomm_bootstrap_create_from_environment(context.get(), &new_bootstrap);
  const Bootstrap bootstrap(new_bootstrap);
  hetcomm_communicator_t* new_communicator = nullptr;
  if (status == HETCOMM_OK) {
    hetcomm_communicator_options_t options{};
    options.struct_size = sizeof(options);
    options.name = "hetcomm_info";
    status =
        hetcomm_communicator_create(context.get(), bootstrap.get(), &options, &new_communicator);
  }
  const Communicator communicator(new_communicator);
  View view;
  if (status == HETCOMM_OK) {
    status = hetcomm_communicator_rank(communicator.get(), &view.rank, &view.size);
  }
  if (status != HETCOMM_OK) {
    report_failure("joining the other ranks", status);
    return kFailure;
  }
  bool ok = meet(communicator.get());
  ok = collect_view(communicator.get(), peer, &view) && ok;
  if (ok || !view.peers.empty()) {
    const std::string text = json ? as_json(view) : as_text(view);
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  return meet(communicator.get()) && ok ? kSuccess : kFailure;
}

int launch(std::optional<int32_t> peer, bool json) {
  constexpr int kRanks = 2;
  if (peer.has_value() && *peer >= kRanks) {
    std::fprintf(
        stderr,
        "hetcomm_info: there is no rank %d: without a launcher, explain starts ranks 0 and "
        "1 on this host\n",
        *peer);
    return kUsage;
  }
  // What is wrong with the environment is said once, not by every rank.
  if (create_context() == nullptr) return kFailure;
  std::vector<std::string> arguments = {"explain"};
  if (json) arguments.insert(arguments.end(), {"--format", "json"});
  if (peer.has_value()) arguments.insert(arguments.end(), {"--rank", std::to_string(*peer)});
  std::vector<std::string> outputs;
  const bool ok = launch_ranks(kRanks, arguments, &outputs);
  if (json) {
    auto all = nlohmann::ordered_json::array();
    for (const std::string& output : outputs) {
      auto one = nlohmann::ordered_json::parse(output, nullptr, false);
      if (!one.is_discarded()) all.push_back(std::move(one));
    }
    std::puts(all.dump(2).c_str());
  } else {
    for (const std::string& output : outputs) std::fputs(output.c_str(), stdout);
  }
  return ok ? kSuccess : kFailure;
}

}  // namespace

int explain(std::optional<int32_t> peer, bool json) {
  const bool launched = std::getenv("RANK") != nullptr || std::getenv("WORLD_SIZE") != nullptr;
  return launched ? join(peer, json) : launch(peer, json);
}

}  // namespace hetcomm_info
