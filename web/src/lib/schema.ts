// Validates a value against the OpenAPI document's schemas; supports the part of JSON Schema that the document uses.

export interface Fault {
  path: string;
  text: string;
}

type Schema = any;

export class SchemaChecker {
  readonly #schemas: Record<string, Schema>;

  constructor(document: any) {
    this.#schemas = document?.components?.schemas ?? {};
  }

  check(name: string, value: unknown): Fault[] {
    return this.#check(this.#schemas[name] ?? {}, value, '');
  }

  /** The names and descriptions of the tools that a step can use. */
  tools(): { name: string; text: string; fields: string[] }[] {
    const tools = new Map<string, { name: string; text: string; fields: string[] }>();
    for (const option of this.#schemas.Step?.oneOf ?? []) {
      const properties = this.#properties(option);
      const name: string = properties.tool?.enum?.[0] ?? '';
      const fields = Object.keys(properties).filter((field) => field !== 'tool');
      // A tool with several forms, such as the actions on the desktop, has one schema for each.
      const known = tools.get(name);
      if (known) known.fields = [...new Set([...known.fields, ...fields])];
      else tools.set(name, { name, text: option.description ?? '', fields });
    }
    return [...tools.values()];
  }

  /** All properties an object may have, including those of combined and alternative schemas. */
  #properties(raw: Schema): Record<string, Schema> {
    const schema = this.#resolve(raw);
    const parts: Schema[] = [...(schema.allOf ?? []), ...(schema.oneOf ?? [])];
    return Object.assign({}, schema.properties, ...parts.map((part) => this.#properties(part)));
  }

  #resolve(schema: Schema): Schema {
    const name = typeof schema?.$ref === 'string' ? schema.$ref.split('/').at(-1) : null;
    return name ? this.#resolve(this.#schemas[name] ?? {}) : schema;
  }

  #check(raw: Schema, value: any, path: string): Fault[] {
    const schema = this.#resolve(raw);
    if (schema.allOf) return this.#checkAll(schema.allOf, value, path);
    if (schema.oneOf) return this.#checkOne(schema.oneOf, value, path);
    if (schema.enum && !schema.enum.includes(value)) return [{ path, text: `must be ${schema.enum.join(' or ')}` }];
    const types: string[] = schema.type === undefined ? [] : [schema.type].flat();
    if (types.length > 0 && !types.some((type) => isType(type, value))) return [{ path, text: `must be ${types.join(' or ')}` }];
    if (Array.isArray(value) && schema.items) return value.flatMap((item, index) => this.#check(schema.items, item, `${path}[${index}]`));
    if (value && typeof value === 'object' && schema.properties) return this.#checkObject(schema, value, path);
    return [];
  }

  #checkObject(schema: Schema, value: Record<string, unknown>, path: string): Fault[] {
    const faults: Fault[] = [];
    for (const name of schema.required ?? []) {
      if (!(name in value)) faults.push({ path, text: `\`${name}\` is missing` });
    }
    for (const [name, part] of Object.entries(value)) {
      const inner = schema.properties[name];
      if (inner) faults.push(...this.#check(inner, part, path ? `${path}.${name}` : name));
      else if (schema.additionalProperties === false) faults.push({ path, text: `\`${name}\` is not known` });
    }
    return faults;
  }

  /** Checks schemas that share one object, such as a step's tool and options: a property is known if any has it. */
  #checkAll(parts: Schema[], value: any, path: string): Fault[] {
    const faults = parts.flatMap((part) => this.#check(part, value, path));
    const known = new Set(parts.flatMap((part) => this.#fields(part, value)));
    return faults.filter((fault) => {
      const name = /^`(.*)` is not known$/.exec(fault.text)?.[1];
      return name === undefined || !known.has(name);
    });
  }

  #fields(raw: Schema, value: any): string[] {
    const schema = this.#resolve(raw);
    const form = schema.oneOf ? this.#pick(schema.oneOf, value) : null;
    return Object.keys(this.#properties(form ?? schema));
  }

  /** The schema for this tool; of several, the one with the same action or else the fewest faults. */
  #pick(options: Schema[], value: any): Schema | null {
    const names = (option: Schema, field: string) => this.#properties(option)[field]?.enum?.includes(value?.[field]);
    const fitting = options.filter((option) => names(option, 'tool'));
    const acting = fitting.filter((option) => names(option, 'action'));
    const candidates = acting.length > 0 ? acting : fitting;
    if (candidates.length < 2) return candidates[0] ?? null;
    const faults = candidates.map((option) => this.#check(option, value, '').length);
    return candidates[faults.indexOf(Math.min(...faults))];
  }

  #checkOne(options: Schema[], value: any, path: string): Fault[] {
    const resolved = options.map((option) => this.#resolve(option));
    const tools = options.flatMap((option) => this.#properties(option).tool?.enum ?? []);
    if (tools.length > 0) {
      const option = this.#pick(options, value);
      if (!value || typeof value !== 'object') return [{ path, text: 'must be an object' }];
      if (!('tool' in value)) return [{ path, text: '`tool` is missing' }];
      if (!option) return [{ path: `${path}.tool`, text: `must be one of ${[...new Set(tools)].join(', ')}` }];
      return this.#check(option, value, path);
    }
    const results = resolved.map((option) => this.#check(option, value, path));
    return results.find((faults) => faults.length === 0) ?? results[0] ?? [];
  }
}

function isType(type: string, value: unknown): boolean {
  switch (type) {
    case 'object':
      return typeof value === 'object' && value !== null && !Array.isArray(value);
    case 'array':
      return Array.isArray(value);
    case 'integer':
      return Number.isInteger(value);
    case 'null':
      return value === null;
    default:
      return typeof value === type;
  }
}
