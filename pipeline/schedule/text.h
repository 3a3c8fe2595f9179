// Writes and reads schedules as text, in PyTorch's CSV format for pipeline schedules, with one line
// for each rank.
//
// An action consists of its stage, its kind and its micro-batch: "0F3", "1SEND_B0", "2REDUCE_GRAD".
// A bubble is an empty cell. Two actions that can overlap share one cell: "(0F7;7B3)OVERLAP_F_B".
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "pipeline/schedule/schedule.h"
#include "src/base/status.h"

namespace hetcomm::pipeline {

// Returns "F", "SEND_B", "WAIT_RECV_F" and so on, or "" for a bubble.
std::string_view name_of(ActionKind kind);
// Returns the text of a single action, also if it belongs to a pair.
std::string to_text(const Action& action);

// Appends the actions of a cell: none, one, or a pair. An empty cell is a bubble. Returns false if
// |cell| is not valid.
bool parse_cell(std::string_view cell, std::vector<Action>& actions);
// Calls use(text) for each cell of a rank.
void for_each_cell(const std::vector<Action>& actions,
                   const std::function<void(std::string text)>& use);

// Returns the schedule as CSV. Every line has a line end.
std::string write_csv(const Schedule& schedule);

// Reads a schedule. |rank_of| has the rank of every stage. If it is empty, a stage is assigned to
// the rank that computes for it. The number of micro-batches is one more than the highest index. A
// cell may have spaces around it. The last line needs no line end. Fails with kInvalidArgument and
// a text that names the line and the cell.
Result<Schedule> read_csv(std::string_view text, std::vector<uint32_t> rank_of = {});

// Sets the number of micro-batches of |schedule|, and the rank of every stage unless rank_of is
// given. Fails with kInvalidArgument if no rank, or more than one rank, computes for a stage.
Status complete(Schedule& schedule);

}  // namespace hetcomm::pipeline
