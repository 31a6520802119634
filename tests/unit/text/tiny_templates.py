"""Chat templates in the manners of the model families: small, but with the turns that real ones take."""

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{%- if tools is not none %}
    {{- '<|head|>system<|/head|>\\n\\nTools:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=4) }}
        {{- '\\n' }}
    {%- endfor %}
    {{- system + '<|eot|>' }}
{%- elif system %}
    {{- '<|head|>system<|/head|>\\n\\n' + system + '<|eot|>' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.tool_calls is defined and message.tool_calls %}
        {{- '<|head|>assistant<|/head|>\\n\\n' }}
        {%- for call in message.tool_calls %}
            {{- '{"name": "' ~ call.function.name ~ '", "parameters": ' ~ (call.function.arguments | tojson) ~ '}' }}
        {%- endfor %}
        {{- '<|eot|>' }}
    {%- elif message.role == 'tool' %}
        {{- '<|head|>ipython<|/head|>\\n\\n' + message.content | tojson + '<|eot|>' }}
    {%- else %}
        {{- '<|head|>' + message['role'] + '<|/head|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|head|>assistant<|/head|>\\n\\n' }}
{%- endif %}
"""

CHATML = """\
{% for message in messages %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% if enable_thinking is defined and enable_thinking is false %}
{{ '<think>\\n\\n</think>\\n\\n' }}
{% endif %}
{% endif %}
"""

GEMMA = """\
{{ bos_token }}
{%- for message in messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate between user and assistant") }}
    {%- endif -%}
    {{ '<start_of_turn>' + ('model' if message['role'] == 'assistant' else message['role']) + '\\n' }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- else -%}
        {%- for part in message['content'] -%}
            {%- if part['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif part['type'] == 'text' -%}
                {{ part['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{ '<start_of_turn>model\\n' }}
{%- endif -%}
"""

MISTRAL = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {%- if message.role == 'user' %}
        {%- if loop.index0 == ns.last and messages[0].role == 'system' %}
            {{- '[INST] ' ~ messages[0].content ~ '\\n\\n' ~ message.content ~ '[/INST]' }}
        {%- else %}
            {{- '[INST] ' ~ message.content ~ '[/INST]' }}
        {%- endif %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' ~ message.content ~ eos_token }}
    {%- else %}
        {{- raise_exception('Only user, assistant and system roles are known, not ' ~ message.role ~ '!') }}
    {%- endif %}
{%- endfor %}
"""

# Macros, block assignments, generation blocks, and arguments that are text.
THINKER = """\
{%- macro turn(role, text) -%}
    <{{ role }}>{{ text }}</{{ role }}>
{%- endmacro -%}
{%- set banner -%}
    {{ strftime_now('%Y') | length }} digits
{%- endset -%}
{{ banner | upper }}
{%- for message in messages if message.role != 'system' %}
    {%- if message.role == 'assistant' %}
        {%- generation %}
            {%- if message.reasoning_content %}{{ turn('think', message.reasoning_content) }}{% endif %}
            {{- turn('a', message.content or '') }}
            {%- for call in message.tool_calls or [] %}{{ turn('call', call['function']['arguments'] + '!') }}{% endfor %}
        {%- endgeneration %}
    {%- else %}
        {{- turn(message.role[:1], message.content) }}
    {%- endif %}
{%- endfor %}
{%- for document in documents or [] %}{{ turn('doc', document.text) }}{% endfor %}
"""

ALL = {"llama-3": LLAMA3, "chatml": CHATML, "gemma": GEMMA, "mistral": MISTRAL, "thinker": THINKER}
