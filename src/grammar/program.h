/* program.h - a grammar compiled: instructions of an automaton over bytes, with a stack.
 *
 * A thread of the automaton is a position (pc: an instruction that reads a byte) and what follows
 * when the rule or loop it is in ends (threads.h). Several threads are alive where the text so far
 * can be read in several ways.
 *
 * A counted repetition is a number beside a thread, not so many copies: {0,100000} costs what *
 * does.
 *
 * (1) Every thread can reach the end: what cannot was left out, or refused.
 * (2) No rule calls itself before it has read a byte, so threads settle after finitely many calls.
 * (3) Instruction 0 is END. */
#ifndef GRAMMAR_PROGRAM_H
#define GRAMMAR_PROGRAM_H

#include "grammar/expr.h"

enum inst_kind {
    INST_END,   /* of the rule or the loop's body: continue with what follows */
    INST_RANGE, /* a byte of low .. high, then next */
    INST_SET,   /* a byte of sets[other], then next */
    INST_SPLIT, /* next and other */
    INST_JUMP,  /* next; none is left when the program is finished */
    INST_CALL,  /* the rule that begins at other, then next */
    INST_LOOP,  /* loops[other], then next */
};

struct inst {
    uint8_t kind;
    uint8_t low, high;
    uint8_t zero;
    uint32_t next, other;
};

struct byte_set {
    uint32_t bits[8];
};

struct loop {
    uint32_t body;
    uint32_t min, max; /* max: REPEAT_NO_LIMIT, or at least 1 */
    bool is_nullable;  /* its body may be empty; then min is 0 */
};

struct program {
    struct arena arena;
    struct inst *insts;
    struct byte_set *sets;
    struct loop *loops;
    uint32_t n_insts, n_sets, n_loops;
    uint32_t start;
};

enum {
    PROGRAM_MAX_INSTS = 1 << 18,
    PROGRAM_MAX_REPEAT = 1 << 24,
};

/* Compiles what rule `root` says. Refuses left recursion, rules that never end, rules without a
 * body and grammars that are too large, naming the rule. */
int program_compile(struct program *out, struct builder *b, uint32_t root, struct err *err);
void program_close(struct program *p);

/* Whether the instruction, INST_RANGE or INST_SET, reads this byte. */
static inline bool program_reads(const struct program *p, uint32_t pc, uint8_t byte) {
    const struct inst *inst = &p->insts[pc];
    return inst->kind == INST_RANGE ? byte >= inst->low && byte <= inst->high
                                    : p->sets[inst->other].bits[byte / 32] >> byte % 32 & 1;
}

#endif
