// Writes and reads schedules as text: PyTorch's CSV form of pipeline schedules, one line for each
// rank.
//
// An action is its stage, its kind and its micro-batch: "0F3", "1SEND_B0", "2REDUCE_GRAD". A bubble
// is an empty cell. Two actions that may overlap are one cell: "(0F7;7B3)OVERLAP_F_B".
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// Returns "F", "SEND_B", "WAIT_RECV_F" and so on; "" for a bubble.
std::string_view name_of(ActionKind kind);
// Returns an action as a cell without its partner.
std::string to_text(const Action& action);

// Appends the actions of a cell: none, one, or a pair. An empty cell is a bubble. Returns false if
// |cell| is no cell.
bool parse_cell(std::string_view cell, std::vector<Action>& actions);
// Calls use(text) for each cell of a rank.
void for_each_cell(const std::vector<Action>& actions,
                   const std::function<void(std::string text)>& use);

// Returns the schedule. Every line has a line end.
std::string write_csv(const Schedule& schedule);

// Reads a schedule. |rank_of| tells the rank of every stage; if it is empty, the rank that computes
// for a stage has it. The number of micro-batches is one more than the highest. A cell may have
// spaces around it. The last line needs no line end. Fails with kInvalidArgument and the line
// and cell.
Result<Schedule> read_csv(std::string_view text, std::vector<uint32_t> rank_of = {});

// Counts the micro-batches of |schedule|, and finds the rank of every stage unless rank_of is
// given. Fails with kInvalidArgument if two ranks or none compute for a stage.
Status complete(Schedule& schedule);

}  // namespace hetcomm::pipeline
