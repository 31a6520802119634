// Something to begin with: schemas, tools, and questions that use them.

const written = (name, value) => ({ name, text: JSON.stringify(value, null, 2) });
const closed = (properties) => ({ type: "object", properties, required: Object.keys(properties), additionalProperties: false });
const tool = (name, description, properties) => ({
  type: "function", function: { name, description, parameters: closed(properties) },
});

export const SCHEMAS = [
  written("A person", closed({
    name: { type: "string", maxLength: 40 },
    age: { type: "integer", minimum: 0, maximum: 120 },
    languages: { type: "array", items: { type: "string", maxLength: 20 }, minItems: 1, maxItems: 4 },
  })),
  written("A recipe", closed({
    title: { type: "string", maxLength: 60 },
    minutes: { type: "integer", minimum: 1, maximum: 240 },
    ingredients: { type: "array", items: { type: "string", maxLength: 40 }, minItems: 2, maxItems: 8 },
    difficulty: { enum: ["easy", "medium", "hard"] },
  })),
  written("A judgement", closed({
    sentiment: { enum: ["positive", "neutral", "negative"] },
    confidence: { type: "number", minimum: 0, maximum: 1 },
  })),
];

export const TOOLS = [
  written("The weather", [tool("get_weather", "The weather in a city, now", {
    city: { type: "string", maxLength: 40 }, unit: { enum: ["celsius", "fahrenheit"] },
  })]),
  written("A calculator", [tool("calculate", "The value of an arithmetic expression", {
    expression: { type: "string", maxLength: 80 },
  })]),
  written("A calendar", [
    tool("list_events", "What stands in the calendar on a day", { date: { type: "string", format: "date" } }),
    tool("add_event", "Put something into the calendar", {
      date: { type: "string", format: "date" }, title: { type: "string", maxLength: 60 },
    }),
  ]),
];

/** Each sets what it needs and asks. */
export const STARTERS = [
  {
    title: "Ask a question", about: "Why is the sky blue?",
    message: "Why is the sky blue? Answer in three sentences.", changes: { form: "text", tools_on: false },
  },
  {
    title: "Answer to a schema", about: "A made-up person, as JSON that always fits",
    message: "Invent a person who loves the sea.", changes: { form: "schema", schema: SCHEMAS[0].text, tools_on: false },
  },
  {
    title: "Call a tool", about: "The model asks for the weather, you reply",
    message: "What is the weather in Lisbon?",
    changes: { form: "text", tools_on: true, tools: TOOLS[0].text, tool_choice: "required" },
  },
  {
    title: "Write something long", about: "A story, to watch the engine at work",
    message: "Write a long story about a lighthouse keeper who finds a map.",
    changes: { form: "text", tools_on: false, max_tokens: 1024 },
  },
];
