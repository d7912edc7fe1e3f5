/* jinja_ast.h - a template as tokens and as a tree; shared by lexer, parser and evaluator. */
#ifndef TEXT_JINJA_AST_H
#define TEXT_JINJA_AST_H

#include "base/arena.h"
#include "text/jinja_value.h"

enum {
    JINJA_MAX_SOURCE = 4 << 20, /* bytes of a template */
    JINJA_MAX_NESTING = 150,    /* brackets, blocks and operators inside one another */
    JINJA_MAX_ARGUMENTS = 512,  /* of a call, and parameters of a macro */
};

enum token_kind {
    TK_END,
    TK_TEXT,
    TK_PRINT_BEGIN,
    TK_PRINT_END,
    TK_BLOCK_BEGIN,
    TK_BLOCK_END,
    TK_NAME,
    TK_STRING, /* quotes included */
    TK_INT,
    TK_FLOAT,
    TK_ADD,
    TK_SUB,
    TK_MUL,
    TK_DIV,
    TK_FLOORDIV,
    TK_MOD,
    TK_POW,
    TK_TILDE,
    TK_LBRACKET,
    TK_RBRACKET,
    TK_LPAREN,
    TK_RPAREN,
    TK_LBRACE,
    TK_RBRACE,
    TK_EQ,
    TK_NE,
    TK_GT,
    TK_GE,
    TK_LT,
    TK_LE,
    TK_ASSIGN,
    TK_DOT,
    TK_COLON,
    TK_PIPE,
    TK_COMMA,
    TK_SEMICOLON,
    TK_IN, /* made by the parser, for comparisons */
    TK_NOT_IN,
};

struct jinja_token {
    enum token_kind kind;
    uint32_t line;
    struct str text; /* as written, in the template's arena */
};

enum node_kind {
    /* expressions */
    NODE_CONST,   /* value */
    NODE_NAME,    /* name; also a target */
    NODE_LIST,    /* first: items */
    NODE_TUPLE,   /* first: items; also a target */
    NODE_DICT,    /* first: key, value, key, value ... */
    NODE_COND,    /* a if b else c; c may be NULL */
    NODE_OR,      /* a or b */
    NODE_AND,     /* a and b */
    NODE_NOT,     /* a */
    NODE_NEG,     /* a */
    NODE_POS,     /* a */
    NODE_BINARY,  /* a op b */
    NODE_CONCAT,  /* first: operands */
    NODE_COMPARE, /* a, first: operands, each with its op */
    NODE_ATTR,    /* a.text */
    NODE_ITEM,    /* a[b] */
    NODE_SLICE,   /* a[first:b:c]; each may be NULL */
    NODE_CALL,    /* a(arguments) */
    NODE_FILTER,  /* a | text(arguments); a NULL: the text of a block */
    NODE_TEST,    /* a is text(arguments) */
    /* statements */
    NODE_TEXT,         /* text */
    NODE_PRINT,        /* a */
    NODE_FOR,          /* for a in b if c; first: body; other: else, a NODE_WITH */
    NODE_IF,           /* if a; first: body; other: else, where an elif is an if */
    NODE_SET,          /* a = b */
    NODE_SET_BLOCK,    /* a = first, through the filters b, which may be NULL */
    NODE_WITH,         /* other: target, value, target, value ...; first: body */
    NODE_MACRO,        /* name, text; parameters; first: body; other: the function around it */
    NODE_CALL_BLOCK,   /* a: the call; the rest as a macro */
    NODE_GENERATION,   /* first: body; other: the function around it */
    NODE_FILTER_BLOCK, /* b: the filters; first: body */
    NODE_BREAK,
    NODE_CONTINUE,
    NODE_ATTR_TARGET, /* name.text, only as a target */
};

/* One argument of a call: positional, name=value, *value or **value, in this order. */
struct argument {
    struct str name; /* empty: positional */
    bool is_spread, is_spread_dict;
    const struct node *value;
};

struct parameter {
    uint32_t name;
    struct str text;
    const struct node *fallback; /* the default value; NULL: none */
};

struct node {
    enum node_kind kind;
    enum token_kind op;
    uint32_t line;
    uint32_t name; /* the number of an interned name */
    struct str text;
    struct value value;
    struct node *a, *b, *c, *first, *other;
    struct node *next; /* in the list that holds this node */
    struct argument *arguments;
    uint32_t n_arguments;
    struct parameter *parameters;
    uint32_t *hidden; /* names that mean nothing in this scope until they are set */
    uint32_t n_parameters, n_hidden;
    bool is_elif;                               /* an if that is the `other` of another */
    bool takes_rest, takes_named, takes_caller; /* macros that name varargs, kwargs, caller */
};

/* A compiled template. */
struct jinja {
    struct arena arena;
    char *text; /* the source, and after it the strings of its literals: what the template wrote */
    size_t text_len, text_capacity;
    struct node *root;   /* NODE_WITH: a scope with the statements */
    struct strmap names; /* every name of the source to its number */
};

/* The names that the evaluator binds by itself. Numbers of other names follow. */
enum { NAME_LOOP, NAME_CALLER, NAME_VARARGS, NAME_KWARGS, NAME_FIXED_COUNT };

/* Cuts a source (valid UTF-8) into tokens, the last of which is TK_END. They point into `copy`,
 * which has room for the source. */
int jinja_lex(struct str source, char *copy, struct arena *arena, struct jinja_token **out,
              size_t *count, struct err *err);

/* Parses into jinja->root and jinja->names. */
int jinja_parse(struct jinja *jinja, const struct jinja_token *tokens, size_t count,
                struct err *err);

/* Sets "chat template, line N: what" and returns the code. */
int jinja_error(struct err *err, int code, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
