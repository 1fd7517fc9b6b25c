/* --timeline: one step of all ranks, drawn in the terminal or as an SVG file. Each rank has a row for what it computes,
 * and one for each group's transfers in flight, all on one time axis; where it computes nothing, it waits. */
#ifndef TIMELINE_H
#define TIMELINE_H

/* Checks the option. Returns the step to record, between trace_step_begins and trace_step_ends; 0: none. */
int timeline_open(int first_step);

/* Gathers the recorded step of all ranks and draws it on rank 0. Call it on all ranks. */
void timeline_draw(void);

#endif
