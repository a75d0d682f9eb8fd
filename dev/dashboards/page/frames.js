// From Prometheus's answers to Grafana's data frames, and what Grafana's server side would do to them: overrides, transformations, display.
import {
  applyFieldOverrides,
  createDataFrame,
  createTheme,
  FieldType,
  getDisplayProcessor,
  standardTransformers,
} from '@grafana/data';

export const theme = createTheme({ colors: { mode: 'light' } });

const LABEL = /{{\s*([^}\s]+)\s*}}/g;

// As Grafana names a series: by its legend, with labels filled in.
function nameOf(legend, labels) {
  return legend.replace(LABEL, (_, label) => labels[label] ?? '');
}

// All series of a graph on one grid of times: where a series has nothing, there is a null, which is a gap.
function rangeFrames(panel, payload) {
  const times = [];
  for (let t = payload.from; t <= payload.to; t += payload.step) {
    times.push(t);
  }
  return panel.answers.flatMap((answer) =>
    answer.range.map((series) => {
      const at = new Map(series.values.map(([t, v]) => [Math.round(t * 1000), Number(v)]));
      const values = times.map((t) => {
        const v = at.get(t);
        return v === undefined || !Number.isFinite(v) ? null : v;
      });
      const name = nameOf(answer.legend, series.metric);
      return createDataFrame({
        refId: answer.refId,
        fields: [
          { name: 'Time', type: FieldType.time, values: times, config: { interval: payload.step } },
          { name: 'Value', type: FieldType.number, values, labels: series.metric, config: { displayNameFromDS: name } },
        ],
      });
    })
  );
}

// The answer to an instant query as a table: a column for each label, and the value.
function tableFrames(panel) {
  return panel.answers.map((answer) => {
    const labels = [...new Set(answer.instant.flatMap((row) => Object.keys(row.metric)))].sort();
    return createDataFrame({
      refId: answer.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: answer.instant.map((row) => row.value[0] * 1000) },
        ...labels.map((label) => ({
          name: label,
          type: FieldType.string,
          values: answer.instant.map((row) => row.metric[label] ?? ''),
        })),
        {
          name: panel.answers.length > 1 ? `Value #${answer.refId}` : 'Value',
          type: FieldType.number,
          values: answer.instant.map((row) => Number(row.value[1])),
        },
      ],
    });
  });
}

function transformed(panel, frames) {
  for (const { id, options } of panel.transformations ?? []) {
    const found = Object.values(standardTransformers).find((one) => one.id === id);
    if (id === 'merge') {
      frames = merged(frames);
    } else if (id === 'organize') {
      frames = frames.map((frame) => organized(frame, options));
    } else if (!found) {
      throw new Error(`no transformation ${id}`);
    }
  }
  return frames;
}

// Grafana's merge: rows that agree in all labels that they share become one.
function merged(frames) {
  const rows = [];
  const names = [];
  for (const frame of frames) {
    const labels = frame.fields.filter((f) => f.type === FieldType.string).map((f) => f.name);
    for (const field of frame.fields) {
      if (!names.includes(field.name)) {
        names.push(field.name);
      }
    }
    for (let i = 0; i < frame.length; i++) {
      const row = Object.fromEntries(frame.fields.map((f) => [f.name, f.values[i]]));
      const same = rows.find((one) => labels.every((l) => one[l] === undefined || one[l] === row[l]) && labels.some((l) => one[l] === row[l]));
      if (same) {
        Object.assign(same, row);
      } else {
        rows.push(row);
      }
    }
  }
  const kind = (name) => frames.flatMap((f) => f.fields).find((f) => f.name === name).type;
  return [
    createDataFrame({
      fields: names.map((name) => ({ name, type: kind(name), values: rows.map((row) => row[name] ?? null) })),
    }),
  ];
}

function organized(frame, { includeByName, indexByName, renameByName }) {
  const fields = frame.fields
    .filter((f) => includeByName[f.name])
    .sort((a, b) => indexByName[a.name] - indexByName[b.name])
    .map((f) => ({ ...f, name: renameByName[f.name] ?? f.name }));
  return createDataFrame({ fields });
}

function matches({ id, options }, name) {
  if (id === 'byName') {
    return options === name;
  }
  const [, pattern] = /^\/(.*)\/$/.exec(options);
  return new RegExp(pattern).test(name);
}

function setPath(config, path, value) {
  const keys = path.split('.');
  const last = keys.pop();
  let at = config;
  for (const key of keys) {
    at = at[key] = { ...at[key] };
  }
  at[last] = value;
}

// Defaults and overrides go into each field's own config; Grafana does the same by registries that only its frontend fills.
function configured(panel, frames) {
  let series = 0;
  for (const frame of frames) {
    for (const field of frame.fields) {
      if (field.type === FieldType.time) {
        continue;
      }
      const name = field.config.displayNameFromDS ?? field.name;
      const config = structuredClone(panel.fieldConfig.defaults);
      if (field.type === FieldType.string) {
        delete config.unit;
      }
      for (const override of panel.fieldConfig.overrides.filter((one) => matches(one.matcher, name))) {
        for (const { id, value } of override.properties) {
          setPath(config, id, value);
        }
      }
      field.config = { ...config, displayNameFromDS: field.config.displayNameFromDS };
      field.state = { ...field.state, seriesIndex: series++, displayName: name };
    }
  }
  const found = applyFieldOverrides({
    data: frames,
    fieldConfig: { defaults: {}, overrides: [] },
    replaceVariables: (text) => text,
    theme,
    timeZone: 'utc',
  });
  let index = 0;
  for (const frame of found) {
    for (const field of frame.fields) {
      if (field.type !== FieldType.time) {
        field.state = { ...field.state, seriesIndex: index++ };
        field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
      }
    }
  }
  return found;
}

export function framesOf(panel, payload) {
  const raw = panel.type === 'table' ? transformed(panel, tableFrames(panel)) : rangeFrames(panel, payload);
  return configured(panel, raw);
}
